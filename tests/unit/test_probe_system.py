"""What the probe finds of GPUs, the session, processes and files: for real here, and on synthetic trees."""

from __future__ import annotations

import io
import os
import resource
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from waiting import HANG, PATIENCE, at_most, wait_for

from mnt.facts.host import HostFacts
from mnt.facts.system import Gpus, KernelLog
from mnt.preflight.nvidia import xids
from mnt.remote.common import capabilities
from mnt.remote.common.files import stat_fields
from mnt.remote.probe import (
    children,
    memory,
    nvidia,
    probe,
    rdma,
    session,
)
from mnt.remote.probe.leftovers import locks, own_processes, release
from mnt.remote.probe.settings import logind

DATA = Path(__file__).parents[1] / "data" / "nvidia-smi"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def parsed(**facts: object) -> HostFacts:
    return HostFacts.parse("here", {"hostname": "here", **facts})


def ask_gpus(deadline: float) -> Gpus:
    found = parsed(gpus=nvidia.gpus(deadline)).gpus
    assert found is not None
    return found


# --- nvidia-smi ------------------------------------------------------------------------------------------


def recorded(name: str) -> str:
    """What nvidia-smi printed, without the command before it and the exit status behind it."""
    return "".join((DATA / name).read_text().splitlines(keepends=True)[1:-1])


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`tool(script)`: an nvidia-smi, first on PATH, that runs it; it logs how it was called."""

    def make(script: str) -> Path:
        path = tmp_path / "nvidia-smi"
        path.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\n{script}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return tmp_path / "calls"

    return make


ANSWERS = f"""case $1 in
    --query-gpu=*) sed '1d;$d' {DATA}/query-gpu.txt;;
    --query-remapped-rows=*) sed '1d;$d' {DATA}/query-remapped-rows.txt;;
    --query-compute-apps=*) echo 'gpu_uuid, pid, used_gpu_memory [MiB], process_name'
        echo 'GPU-000000a1-0000-4000-8000-000000000001, 645, 1634 MiB, python3, and more';;
    nvlink) sed '1d;$d' {DATA}/nvlink-s.txt;;
    *) exit 2;;
esac"""


def test_all_questions_cost_one_run_each(tool: Any) -> None:
    calls = tool(ANSWERS)
    facts = ask_gpus(PATIENCE)
    assert [gpu.name for gpu in facts.found] == ["NVIDIA H200"] * 2
    assert [row.failure for row in facts.rows] == ["No"] * 2
    assert [row.name for row in facts.processes] == ["python3, and more"]
    assert "Link 17" in facts.links
    assert len(calls.read_text().splitlines()) == 4


def test_what_only_some_drivers_can_answer_is_left_out(tool: Any) -> None:
    tool(f"case $1 in --query-gpu=*) sed '1d;$d' {DATA}/query-gpu.txt;; *) echo not supported; exit 3;; esac")
    facts = ask_gpus(PATIENCE)
    assert len(facts.found) == 2
    assert (facts.rows, facts.processes, facts.links, facts.error) == ((), (), "", None)


@pytest.mark.parametrize("hangs", ["--query-gpu=*", "nvlink"])
def test_one_question_that_hangs_holds_up_no_other(tool: Any, hangs: str) -> None:
    tool(f"case $1 in {hangs}) exec sleep {HANG};; esac\n{ANSWERS}")
    with at_most(PATIENCE):
        facts = ask_gpus(5)
    assert (facts.error is None) == (hangs == "nvlink")
    assert len(facts.rows) == 2


@pytest.mark.parametrize(
    ("driver", "throttle", "fabric", "recovery"),
    [
        (470, "clocks_throttle_reasons.active", False, False),
        (535, "clocks_event_reasons.active", True, False),
        (580, "clocks_event_reasons.active", True, True),
        (None, "clocks_event_reasons.active", True, True),
    ],
)
def test_drivers_are_asked_for_what_they_know(
    driver: int | None, throttle: str, fabric: bool, recovery: bool
) -> None:
    fields = nvidia.known_fields(driver)
    assert [field for field in fields if field.startswith("clocks")] == [throttle]
    assert ("fabric.state" in fields, "gpu_recovery_action" in fields) == (fabric, recovery)
    assert fields[0] == "index"


def pci(root: Path, devices: dict[str, tuple[str, str]]) -> Path:
    """Devices by address: (vendor, class). The table in /proc names them by vendor too."""
    table = "".join(
        f"{4096 + i:04x}\t{vendor[2:]}2330\t0\n" for i, (vendor, _) in enumerate(devices.values())
    )
    files = {"proc/bus/pci/devices": table}
    for address, (vendor, kind) in devices.items():
        files[f"sys/bus/pci/devices/{address}/vendor"] = vendor + "\n"
        files[f"sys/bus/pci/devices/{address}/class"] = kind + "\n"
    return write(root, files)


def test_gpus_on_the_bus(tmp_path: Path) -> None:
    root = pci(
        tmp_path,
        {
            "0000:00:00.0": ("0x8086", "0x060000"),
            "0000:1b:00.0": ("0x10de", "0x030200"),
            "0000:0a:00.0": ("0x10de", "0x030000"),
            "0000:0a:00.1": ("0x10de", "0x040300"),  # the sound device of a workstation's card
            "0000:05:00.0": ("0x10de", "0x068000"),
            "0000:06:00.0": ("0x1002", "0x030000"),
        },
    )
    assert nvidia.pci_devices(str(root)) == (["0000:0a:00.0", "0000:1b:00.0"], 1)


def test_a_bus_without_nvidia_and_no_bus_at_all(tmp_path: Path) -> None:
    assert nvidia.pci_devices(str(pci(tmp_path / "a", {"0000:00:00.0": ("0x8086", "0x030000")}))) == ([], 0)
    assert nvidia.pci_devices(str(tmp_path / "b")) == ([], 0)


# --- commands --------------------------------------------------------------------------------------------


def test_commands_run_side_by_side() -> None:
    with at_most(PATIENCE):
        answers = children.run_all(
            {
                "slow": ["sh", "-c", "sleep 0.5; echo done"],
                "too slow": ["sleep", str(HANG)],
                "loud": ["sh", "-c", "head -c 1000000 /dev/zero; echo oops >&2; exit 3"],
                "missing": ["/nonexistent/tool"],
            },
            5,
        )
    assert answers["slow"] == (0, "done\n")
    assert answers["too slow"] == (124, "no answer in 5 s")
    assert answers["loud"][0] == 3
    assert answers["loud"][1].endswith("oops\n")
    assert answers["missing"][0] == 127


# --- the kernel log --------------------------------------------------------------------------------------


def log_of(answer: dict[str, object]) -> KernelLog:
    found = parsed(gpus={"kernel_log": answer}).gpus
    assert found is not None
    assert found.kernel_log is not None
    return found.kernel_log


@contextmanager
def fake_journal(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Iterator[None]:
    """The kernel log is closed to this user, and journalctl does what the script does."""
    path = directory / "journalctl"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    real = os.open

    def closed(path: str, flags: int, *rest: Any) -> int:
        if path == "/dev/kmsg":
            raise PermissionError(1, "Operation not permitted")
        return real(path, flags, *rest)

    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{directory}:/usr/bin:/bin")
        patch.setattr(os, "open", closed)
        yield


def test_a_closed_kernel_log_is_looked_for_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus."
    script = f"echo '{time.time() - 100:.6f} gpu01 kernel: {line}'"
    with fake_journal(tmp_path, monkeypatch, script):
        answer = nvidia.kernel_log("NVRM: Xid", PATIENCE)
    (xid,) = xids(log_of(answer).lines)
    assert (xid.code, xid.device) == (79, "0000:41:00")
    assert 100 <= xid.age < 100 + PATIENCE


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo 'No journal files were opened due to insufficient permissions.' >&2; exit 1", True),
        ("echo 'Hint: You are currently not seeing messages from other users and the system.' >&2", True),
        ("echo 'unknown option --grep' >&2; exit 64", True),
        ("echo '-- No entries --'", False),
        ("exit 1", False),
    ],
)
def test_a_journal_that_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, error: bool
) -> None:
    with fake_journal(tmp_path, monkeypatch, script):
        answer = nvidia.kernel_log("NVRM: Xid", PATIENCE)
    assert answer == {"lines": [], "error": "Operation not permitted" if error else None}


@pytest.mark.skipif(
    not os.access("/dev/kmsg", os.W_OK), reason="needs root and a kernel log, to write a line into it"
)
def test_a_line_of_the_real_kernel_log() -> None:
    text = f"mnt test {time.monotonic_ns()}"
    try:
        Path("/dev/kmsg").write_text(text + "\n")
        os.close(os.open("/dev/kmsg", os.O_RDONLY))
    except OSError as error:
        pytest.skip(f"no kernel log here: {error}")
    (line,) = log_of(nvidia.kernel_log(text, PATIENCE)).lines
    assert line.text == text
    assert 0 <= line.age < PATIENCE


# --- the session -----------------------------------------------------------------------------------------


def test_the_limits_of_this_session() -> None:
    mask = os.umask(0o027)
    try:
        found = session.session({})
    finally:
        os.umask(mask)
    assert found["umask"] == 0o027
    assert found["path"] == os.environ["PATH"]
    assert found["nofile"] in (resource.getrlimit(resource.RLIMIT_NOFILE)[0], None)
    raises = capabilities.root_may(capabilities.CAP_SYS_RESOURCE)
    assert found["nofile_most"] == (None if raises else resource.getrlimit(resource.RLIMIT_NOFILE)[1])


CODE = "import json; from mnt.remote.probe.session import session; print(json.dumps(session({})))"


def as_sshd_starts_it(shell: str) -> dict[str, Any]:
    """The session of a Python that a shell starts, which leads a session of its own."""
    import json

    done = subprocess.run(
        ["sh", "-c", shell, "sh", sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_slow_start_up_file_is_seen() -> None:
    found = as_sshd_starts_it('sleep 3; "$@"; :')
    assert 2.9 <= found["shell_seconds"] < PATIENCE
    assert 0 <= found["python_seconds"] < PATIENCE
    assert as_sshd_starts_it('"$@"; :')["shell_seconds"] < 2.9


def test_a_wrapper_of_the_interpreter_is_not_a_start_up_file() -> None:
    assert as_sshd_starts_it('sh -c "sleep 3; \\"\\$@\\"; :" sh "$@"; :')["shell_seconds"] < 2.9


def test_without_such_a_shell_nothing_is_said() -> None:
    assert as_sshd_starts_it('exec "$@"')["shell_seconds"] is None


# --- logind ----------------------------------------------------------------------------------------------

SHIPPED = "[Login]\n#KillUserProcesses=no\n#KillExcludeUsers=root\n#RemoveIPC=yes\n"


@pytest.mark.parametrize(
    ("files", "settings"),
    [
        ({}, {}),
        ({"etc/systemd/logind.conf": SHIPPED}, {}),
        ({"etc/systemd/logind.conf": "[Login]\nRemoveIPC = no\n"}, {"RemoveIPC": "no"}),
        ({"etc/systemd/logind.conf": "[Other]\nRemoveIPC=no\n[Login]\nNAutoVTs=6\n"}, {}),
        # The main file of /etc hides that of /usr/lib; drop-ins of any directory are taken after it.
        (
            {
                "etc/systemd/logind.conf": "[Login]\nRemoveIPC=no\n",
                "usr/lib/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\nRemoveIPC=yes\n",
            },
            {"RemoveIPC": "no"},
        ),
        (
            {
                "etc/systemd/logind.conf": "[Login]\nRemoveIPC=no\n",
                "usr/lib/systemd/logind.conf.d/10-vendor.conf": "[Login]\nRemoveIPC=yes\n",
            },
            {"RemoveIPC": "yes"},
        ),
        # By name, whatever the directory ..
        (
            {
                "etc/systemd/logind.conf.d/10-a.conf": "[Login]\nRemoveIPC=yes\n",
                "usr/lib/systemd/logind.conf.d/20-b.conf": "[Login]\nRemoveIPC=no\n",
            },
            {"RemoveIPC": "no"},
        ),
        # .. and of two with one name the one in /etc.
        (
            {
                "etc/systemd/logind.conf.d/10-a.conf": "[Login]\nKillUserProcesses=yes\n",
                "run/systemd/logind.conf.d/10-a.conf": "[Login]\nKillUserProcesses=no\n",
            },
            {"KillUserProcesses": "yes"},
        ),
        ({"etc/systemd/logind.conf.d/10-a.conf.bak": "[Login]\nRemoveIPC=yes\n"}, {}),
    ],
)
def test_logind_conf(tmp_path: Path, files: dict[str, str], settings: dict[str, str]) -> None:
    assert logind("ubuntu", str(write(tmp_path, files)))["settings"] == settings


def test_what_the_shipped_file_tells_of_the_defaults(tmp_path: Path) -> None:
    root = write(tmp_path, {"usr/lib/systemd/logind.conf": SHIPPED, "var/lib/systemd/linger/ubuntu": ""})
    (root / "run/systemd/system").mkdir(parents=True)
    found = logind("ubuntu", str(root))
    assert found["defaults"] == {"KillUserProcesses": "no", "KillExcludeUsers": "root", "RemoveIPC": "yes"}
    assert (found["booted"], found["lingers"]) == (True, True)
    assert not logind("eve", str(root))["lingers"]
    assert not logind(None, str(root))["lingers"]


# --- processes -------------------------------------------------------------------------------------------


def start(*argv: str, **environment: str) -> subprocess.Popen[str]:
    """A process that has said that it runs."""
    process = subprocess.Popen(
        argv, env={**os.environ, **environment}, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


WAIT = "print('up', flush=True); import sys; sys.stdin.read()"


def leftovers() -> dict[str, list[int]]:
    found = parsed(processes=own_processes()).processes
    assert found is not None
    return {left.job: list(left.pids) for left in found.leftovers}


def test_a_jobs_processes_without_a_supervisor(tmp_path: Path) -> None:
    job = f"job-{os.getpid()}"
    with start(sys.executable, "-c", WAIT, MNT_JOB=job, MNT_HOST="node1") as orphan:
        assert leftovers()[job] == [orphan.pid]
        program = write(tmp_path, {f"{job}/node1/supervisor.py": WAIT}) / job / "node1" / "supervisor.py"
        with start(sys.executable, str(program), "spec.json") as supervisor:
            assert job not in leftovers()
            supervisor.communicate("")
        assert job in leftovers()
        orphan.communicate("")
    assert job not in leftovers()


def test_zombies_are_counted_by_their_parent() -> None:
    code = (
        "import os\nfor _ in range(3):\n    pid = os.fork()\n    if not pid: os._exit(0)\n"
        "    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)\n" + WAIT
    )
    with start(sys.executable, "-c", code) as parent:
        zombies: Any = own_processes()["zombies"]
        (found,) = (each for each in zombies if each["parent"] == parent.pid)
        assert found["count"] == 3
        assert found["command"].startswith(sys.executable)
        parent.communicate("")


def test_a_compiler_is_seen_by_its_name(tmp_path: Path) -> None:
    compiler = tmp_path / "cicc"
    compiler.symlink_to("/bin/cat")
    process = subprocess.Popen([compiler], stdin=subprocess.PIPE)
    try:
        wait_for(lambda: (stat_fields(process.pid) or ("", []))[0] == "cicc")
        assert own_processes()["compiling"]
    finally:
        process.communicate()


def test_a_command_with_spaces_and_parentheses(tmp_path: Path) -> None:
    program = tmp_path / "a) b (c"
    program.symlink_to("/bin/cat")
    process = subprocess.Popen([program], stdin=subprocess.PIPE)
    try:
        found = wait_for(
            lambda: found if (found := stat_fields(process.pid)) and found[0] == "a) b (c" else None
        )
        assert int(found[1][1]) == os.getpid()
    finally:
        process.communicate()
    assert stat_fields(process.pid) is None


# --- files -----------------------------------------------------------------------------------------------


def test_a_release(tmp_path: Path) -> None:
    assert release(str(tmp_path)) == {"id": None, "whole": False}
    (tmp_path / "current").symlink_to("releases/r1")
    assert release(str(tmp_path)) == {"id": "r1", "whole": False}
    (tmp_path / "releases" / "r1").mkdir(parents=True)
    assert release(str(tmp_path)) == {"id": "r1", "whole": False}
    (tmp_path / "releases" / "r1.manifest.json").write_text("{}")
    assert release(str(tmp_path)) == {"id": "r1", "whole": True}


@pytest.mark.parametrize("place", ["fused_adam/lock", "py311_cu130/fused_adam/lock"])
def test_a_lock_of_a_build(tmp_path: Path, place: str) -> None:
    write(tmp_path, {place: "", "other/build.ninja": "", "readme": ""})
    os.utime(tmp_path / place, (time.time() - 600,) * 2)
    (lock,) = locks(str(tmp_path))
    assert lock["path"] == str(tmp_path / place)
    assert 600 <= lock["age"] < 600 + PATIENCE


def test_no_extensions_were_ever_built(tmp_path: Path) -> None:
    assert locks(str(tmp_path / "nothing")) == []


def test_rdma_software(tmp_path: Path) -> None:
    assert rdma.ofed(str(tmp_path)) is None
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    assert rdma.ofed(str(tmp_path)) == {"libibverbs": None, "mlx5_core": None}
    write(
        tmp_path, {"sys/module/mlx5_core/version": "24.10-0.7.0\n", "usr/lib64/libibverbs.so.1.14.50.0": ""}
    )
    (tmp_path / "usr/lib64/libibverbs.so.1").symlink_to("libibverbs.so.1.14.50.0")
    assert rdma.ofed(str(tmp_path)) == {"libibverbs": "1.14.50.0", "mlx5_core": "24.10-0.7.0"}


# --- memory, name, clock ---------------------------------------------------------------------------------


def test_this_machines_memory() -> None:
    found = parsed(memory=memory.memory()).memory
    assert found is not None
    assert found.total is not None
    assert found.available is not None
    assert 0 < found.available < found.total
    assert (found.shm is not None) == os.path.ismount("/dev/shm")


def test_names() -> None:
    resolved = parsed(resolved=probe.resolve("localhost")).resolved
    assert resolved is not None
    assert "127.0.0.1" in resolved.addresses
    assert probe.resolve("no-such-host.invalid")["error"]


def test_the_time_is_told_when_standard_input_ends() -> None:
    told: list[dict[str, Any]] = []
    before = time.time()
    probe.main({"clock": True}, told.append, io.BytesIO())
    (frame,) = told
    assert before <= frame["time"] <= time.time()


def test_the_hosts_own_name_is_looked_up() -> None:
    found = probe.main({}, print, io.BytesIO())["resolved"]
    assert found == probe.resolve(socket.gethostname())
