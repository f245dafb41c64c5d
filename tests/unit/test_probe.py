"""The probe, run for real on this machine, and its parsers on recorded and synthetic trees."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pythons import interpreter
from waiting import HANG, PATIENCE, at_most

from mnt.facts.host import HostFacts
from mnt.remote.common import files, sockets
from mnt.remote.probe import distributions, filesystems, nvidia, probe

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "nvidia-smi"
PYTHONS = ["python3.8", "python3.9", "python3.10", "python3.12", "python3.13"]


def run_probe(**args: Any) -> dict[str, Any]:
    return probe.main(args, lambda frame: None, sys.stdin.buffer)


def run_python(code: str, python: str = sys.executable, *, within: tuple[str, ...] = ()) -> str:
    """What `code` prints, run by another interpreter that finds `mnt`; `within`: words before its own."""
    done = subprocess.run(
        [*within, python, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# --- the whole program -----------------------------------------------------------------------------------


def test_this_machine_answers_with_facts() -> None:
    facts = HostFacts.parse(
        "here", json.loads(json.dumps(run_probe(mounts=["/proc"], paths=["/etc"], port=1)))
    )
    assert facts.hostname == socket.gethostname()
    assert facts.kernel == os.uname().release
    assert facts.login is not None
    assert facts.login.uid == os.getuid()
    assert facts.python is not None
    assert facts.python.version == platform.python_version()
    assert facts.mounts["/proc"].stack[-1].type == "proc"
    assert facts.paths["/etc"].kind == "dir"
    assert facts.listeners == ()
    (loopback,) = (nic for nic in facts.interfaces if nic.loopback)
    assert "127.0.0.1/8" in loopback.ipv4


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_who_else_could_exchange_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    python = tmp_path / "env" / "python"
    python.symlink_to(sys.executable)
    boot = {"python": [str(python)], "configured": True, "why": ""}

    def exposed(**args: object) -> str | None:
        found = HostFacts.parse("here", run_probe(**{"_boot": boot, **args})).python
        assert found is not None
        return found.exposed and found.exposed.message

    assert exposed() is None
    os.chown(tmp_path / "env", 64999, 64999)
    assert str(exposed()).startswith(f"{tmp_path}/env belongs to uid 64999, not to ")
    assert exposed(workdir_group="no-such") == exposed()
    assert (
        exposed(_boot={**boot, "configured": False, "why": "not found"}) is None
    )  # it is not the inventory's


def test_without_arguments_it_asks_for_nothing() -> None:
    facts = HostFacts.parse("here", run_probe())
    assert (facts.mounts, facts.paths, facts.listeners) == ({}, {}, None)


@pytest.mark.parametrize("name", PYTHONS)
def test_every_supported_python_runs_it(name: str) -> None:
    python = interpreter(name)
    code = (
        "import json; from mnt.remote.probe import probe;"
        "print(json.dumps(probe.main({'paths': ['/', '/nonexistent']}, None, None)))"
    )
    facts = HostFacts.parse("here", json.loads(run_python(code, python)))
    assert facts.python is not None
    assert facts.python.version.startswith(name.removeprefix("python") + ".")
    assert facts.paths["/nonexistent"].kind == "missing"


def test_it_says_which_interpreter_runs_it() -> None:
    boot = {"python": ["/usr/bin/python3"], "configured": False, "why": "not found: /opt/python"}
    facts = HostFacts.parse("here", run_probe(_boot=boot))
    assert facts.python is not None
    assert facts.trains_with is None
    assert facts.python.problem == "not found: /opt/python"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n',
            {"id": "debian", "version": "12"},
        ),
        ("# rolling\nNAME='Arch Linux'\nID='arch'\n", {"id": "arch", "version": None}),
        ("", {"id": "linux", "version": None}),
    ],
)
def test_os_release(text: str, expected: dict[str, str | None]) -> None:
    assert probe.os_release(text) == expected


# --- packages --------------------------------------------------------------------------------------------


def install(site: Path, name: str, version: str, *, directory: str = "", file: str = "METADATA") -> None:
    where = site / (directory or f"{name.replace('-', '_')}-{version}.dist-info")
    where.mkdir(parents=True)
    (where / file).write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: x\n\ntext\n"
    )


def test_only_what_is_asked_for_and_every_nccl(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.13.0+cu130")
    install(tmp_path, "torchvision", "0.28.0")
    install(tmp_path, "nvidia-nccl-cu12", "2.27.5")
    install(tmp_path, "nvidia-nccl-cu13", "2.28.9")
    assert distributions.packages(["Torch", "peft"], [str(tmp_path)]) == {
        "torch": "2.13.0+cu130",
        "nvidia-nccl-cu12": "2.27.5",
        "nvidia-nccl-cu13": "2.28.9",
    }


def test_the_first_directory_on_the_path_wins(tmp_path: Path) -> None:
    install(tmp_path / "user", "torch", "2.12.0")
    install(tmp_path / "system", "torch", "2.13.0")
    search = ["", str(tmp_path / "missing"), str(tmp_path / "user"), str(tmp_path / "system")]
    assert distributions.packages(["torch"], search) == {"torch": "2.12.0"}


def test_an_upgrade_that_broke_off_leaves_two_versions(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.13.0")
    install(tmp_path, "torch", "2.12.0")
    assert distributions.packages(["torch"], [str(tmp_path)]) == {"torch": "2.12.0 and 2.13.0"}


@pytest.mark.parametrize(
    ("directory", "file"),
    [("Deep_Speed.dist-info", "METADATA"), ("deep.speed-0.19-py3.11.egg-info", "PKG-INFO")],
)
def test_other_spellings_and_eggs(tmp_path: Path, directory: str, file: str) -> None:
    install(tmp_path, "Deep.Speed", "0.19", directory=directory, file=file)
    assert distributions.packages(["deep-speed"], [str(tmp_path)]) == {"deep-speed": "0.19"}


def test_a_distutils_egg_info_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "peft-0.10.egg-info").write_text("Metadata-Version: 1.0\nName: peft\nVersion: 0.10\n")
    assert distributions.packages(["peft"], [str(tmp_path)]) == {"peft": "0.10"}


def test_what_pip_leaves_of_a_removed_package_does_not_count(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.12.0", directory="~orch-2.12.0.dist-info")
    (tmp_path / "torch-2.11.0.dist-info").mkdir()
    assert distributions.packages(["torch"], [str(tmp_path)]) == {}


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "13.0"),
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", "none"),
        ("__version__ = '1.10.0'\ndebug = False\ncuda = '10.2'\n", "10.2"),
        ("__version__ = 'dev'\n", None),
    ],
)
def test_the_cuda_that_torch_was_built_for(tmp_path: Path, text: str, cuda: str | None) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(text)
    assert distributions.torch_cuda(["", str(tmp_path)]) == cuda


def test_the_nccl_library_tells_its_version_in_its_header(tmp_path: Path) -> None:
    header = tmp_path / "nvidia" / "nccl" / "include" / "nccl.h"
    assert distributions.nccl_library([str(tmp_path)]) is None
    header.parent.mkdir(parents=True)
    header.write_text(
        "#ifndef NCCL_H_\n\n#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n"
        '#define NCCL_SUFFIX ""\n#define NCCL_VERSION_CODE 22809\n'
    )
    assert distributions.nccl_library([str(tmp_path)]) == "2.28.9"


# --- interfaces ------------------------------------------------------------------------------------------


def in_namespace(script: str) -> list[dict[str, Any]]:
    """The interfaces of a new network namespace in which `script` has run."""
    code = "import json; from mnt.remote.probe.interfaces import interfaces; print(json.dumps(interfaces()))"
    within = ("unshare", "--net", "sh", "-ec", f'{script}\nexec "$@"', "sh")
    answer: list[dict[str, Any]] = json.loads(run_python(code, within=within))
    return answer


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a network namespace")
def test_interfaces_as_the_kernel_has_them() -> None:
    found = {
        nic["name"]: nic
        for nic in in_namespace(
            """
            ip link add ens3f0 type veth peer name other
            ip link property add dev ens3f0 altname enp26s0np0
            ip link set ens3f0 mtu 9000 address 02:00:00:00:00:01 up
            ip link set other up
            ip addr add 10.0.0.1/24 dev ens3f0
            ip addr add 10.0.0.2/24 dev ens3f0
            ip -6 addr add fd00::1/64 dev ens3f0 nodad
            ip link add down0 type veth peer name down1
            ip addr add 10.9.0.1/16 dev down0
            ip link add nolink type veth peer name unplugged
            ip link set nolink up
            ip link add tun9 type veth peer name tun8
            ip addr add 10.8.0.1 peer 10.8.0.2/32 dev tun9
            """
        )
    }
    nic = found["ens3f0"]
    assert nic["altnames"] == ["enp26s0np0"]
    assert (nic["mtu"], nic["up"], nic["carrier"]) == (9000, True, True)
    assert nic["ipv4"] == ["10.0.0.1/24", "10.0.0.2/24"]
    assert "fd00::1/64" in nic["ipv6"]
    assert (found["down0"]["up"], found["down0"]["carrier"]) == (False, None)
    assert found["down0"]["ipv4"] == ["10.9.0.1/16"]
    assert (found["nolink"]["up"], found["nolink"]["carrier"]) == (True, False)
    assert found["tun9"]["ipv4"] == ["10.8.0.1/32"]
    assert found["lo"]["loopback"]
    assert all(nic["speed"] is None for nic in found.values())
    assert found["ens3f0"]["traffic"]["receive_errors"] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a network namespace")
def test_what_an_interface_has_counted() -> None:
    (loopback,) = in_namespace("ip link set lo up; bash -c 'echo >/dev/udp/127.0.0.1/9'")
    assert loopback["traffic"]["received"] == loopback["traffic"]["sent"] > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a network namespace")
def test_hundreds_of_interfaces_take_several_messages() -> None:
    script = "seq 150 | sed 's/.*/link add a& type veth peer name b&/' | ip -batch -"
    assert len(in_namespace(script)) == 301


def test_addresses_of_a_nic_are_cut() -> None:
    """kube-proxy gives a dummy interface an address for each service."""
    script = "seq 200 | sed 's/.*/address add 10.0.0.&\\/24 dev lo/' | ip -batch -"
    (lo,) = in_namespace(script)
    assert len(lo["ipv4"]) == 64


# --- paths and mounts ------------------------------------------------------------------------------------


def test_what_paths_are(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "fifo")
    names = ["file", "link", "dangling", "fifo", "file/below", "."]
    seen, _ = filesystems.look_at([str(tmp_path / name) for name in names], 5)
    assert [entry["kind"] for entry in seen.values()] == [
        "file",
        "file",
        "missing",
        "other",
        "missing",
        "dir",
    ]
    assert seen[str(tmp_path / "link")]["real"] == os.path.realpath(tmp_path / "file")


def test_room_is_what_the_user_can_still_have() -> None:
    status = os.statvfs("/")
    space = filesystems.look("/")["space"]
    assert space is not None
    assert space["size"] == status.f_blocks * status.f_frsize
    assert 0 < space["free"] <= space["size"]


def test_writing_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    seen, _ = filesystems.look_at([str(tmp_path), str(tmp_path / "file")], 5, write=[str(tmp_path)])
    assert [entry["write"] for entry in seen.values()] == ["ok", None]
    assert os.listdir(tmp_path) == ["file"]


def test_writing_says_why_it_fails() -> None:
    assert filesystems.try_to_write("/proc") in ("ENOENT", "EACCES")
    assert filesystems.look("/nonexistent", write=True)["write"] is None


def test_a_path_below_the_home_directory() -> None:
    assert filesystems.look_at(["~"], 5)[0]["~"]["real"] == os.path.realpath(Path.home())


def test_a_path_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read all
    else:
        tmp_path.chmod(0)
    assert filesystems.look(str(tmp_path))["kind"] == "unreadable"


def test_a_hung_path_delays_nothing_but_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statvfs = os.statvfs

    def hang(path: str) -> os.statvfs_result:
        if path == "/hung":
            (tmp_path / "pid").write_text(str(os.getpid()))
            time.sleep(HANG)
        return statvfs(path)

    monkeypatch.setattr(os, "statvfs", hang)
    others = {"quick": lambda: 1, "slow": lambda: time.sleep(HANG)}
    with at_most(PATIENCE):
        seen, answers = filesystems.look_at(["/hung", "/etc", "/"], 3, others=others)
    assert answers == {"quick": 1, "slow": None}
    assert (seen["/hung"]["kind"], seen["/hung"]["error"]) == ("hung", "no answer in 3 s")
    assert (seen["/etc"]["kind"], seen["/"]["kind"]) == ("dir", "dir")
    child = int((tmp_path / "pid").read_text())
    with contextlib.suppress(ChildProcessError), at_most(PATIENCE):
        os.waitpid(child, 0)  # unless it was so fast to die that it is reaped already


def test_a_child_left_behind_holds_no_stream_of_the_session() -> None:
    code = (
        "import os, time; from mnt.remote.probe import filesystems;"
        "os.statvfs = lambda path: time.sleep(40); os.kill = lambda pid, number: None;"  # a child in state D
        "print(filesystems.look_at(['/hung'], 0.2)[0]['/hung']['kind'])"
    )
    with at_most(35):
        assert run_python(code) == "hung\n"  # which waits until nobody holds the streams


MOUNTS = """\
overlay / overlay rw,relatime 0 0
10.1.24.250:/nfs /nfs nfs4 rw,relatime,vers=4.2,hard,proto=tcp,addr=10.1.24.250 0 0
/dev/sda1 /my\\040disk\\011x ext4 ro 0 0
tmpfs /stacked tmpfs rw 0 0
head:/export /stacked nfs rw 0 0
"""


def described(path: str, *, real: str | None = None) -> dict[str, Any]:
    seen = filesystems.look("/")
    seen["real"] = real
    return filesystems.describe_mounts([path], {path: seen}, filesystems.parse_mounts(MOUNTS))[path]


def test_a_mount() -> None:
    (top,) = described("/nfs", real="/nfs")["stack"]
    assert (top["source"], top["type"]) == ("10.1.24.250:/nfs", "nfs4")
    assert "vers=4.2" in top["options"]


def test_not_mounted_tells_what_the_path_lies_on() -> None:
    answer = described("/nfs2", real="/nfs2")
    assert answer["stack"] == []
    assert answer["inside"] is not None
    assert answer["inside"]["type"] == "overlay"


def test_a_directory_within_a_mount() -> None:
    inside = described("/nfs/models", real="/nfs/models")["inside"]
    assert inside is not None
    assert inside["point"] == "/nfs"


def test_stacked_mounts_keep_their_order() -> None:
    assert [mount["source"] for mount in described("/stacked")["stack"]] == ["tmpfs", "head:/export"]


def test_escapes_in_a_mount_point() -> None:
    assert described("/my disk\tx")["stack"][0]["type"] == "ext4"


def test_a_symlink_to_a_mount_counts_as_the_mount() -> None:
    assert described("/data", real="/nfs")["stack"][0]["type"] == "nfs4"


def test_a_hung_mount_is_still_described() -> None:
    assert described("/nfs/", real=None)["stack"][0]["source"] == "10.1.24.250:/nfs"


# --- GPUs ------------------------------------------------------------------------------------------------


def recorded(name: str) -> tuple[str, int]:
    """What nvidia-smi printed, and its exit status; the first line is the command."""
    *lines, status = (DATA / name).read_text().splitlines(keepends=True)
    return "".join(lines[1:]), int(status.strip().removeprefix("rc="))


def fake_nvidia_smi(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = directory / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_gpus_of_a_real_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, _ = recorded("query-gpu.txt")
    (tmp_path / "output").write_text(output)
    fake_nvidia_smi(tmp_path, f"cat {tmp_path}/output", monkeypatch)
    answer = HostFacts.parse("here", {"hostname": "here", "gpus": nvidia.gpus(PATIENCE)}).gpus
    assert answer is not None
    assert answer.error is None
    assert [gpu.name for gpu in answer.found] == ["NVIDIA H200", "NVIDIA H200"]
    assert answer.found[1].memory_total == "143771 MiB"
    assert answer.found[1].event_reasons == "0x0000000000000001"


def test_a_field_that_the_driver_does_not_know_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal, code = recorded("unknown-field.txt")
    (tmp_path / "refusal").write_text(refusal)
    script = (
        f"case $1 in *nosuch.field*) cat {tmp_path}/refusal; exit {code};; esac\n"
        'echo "index, name"; echo "0, NVIDIA H200"'
    )
    fake_nvidia_smi(tmp_path, script, monkeypatch)
    monkeypatch.setattr(nvidia, "FIELDS", ("index", "nosuch.field", "name"))
    assert nvidia.gpus(PATIENCE)["found"] == [{"index": "0", "name": "NVIDIA H200"}]


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "version mismatch"),
        ("echo 'No devices were found' >&2; exit 6", "No devices were found"),
        ("exit 9", "exit status 9"),
        (f"exec sleep {HANG}", "no answer in 0.3 s"),
    ],
)
def test_a_sick_driver_is_an_error_and_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, error: str
) -> None:
    fake_nvidia_smi(tmp_path, script, monkeypatch)
    with at_most(PATIENCE):
        answer = nvidia.gpus(0.3 if "sleep" in script else PATIENCE)
    assert answer["found"] == []
    assert error in str(answer["error"])


# --- listeners -------------------------------------------------------------------------------------------

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1
   1: 0B18010A:733C 0C18010A:A1B2 06 00000000:00000000 03:00001000 00000000     0        0 0 3 0000
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1
"""
_ANY6 = "0" * 32
TCP6 = f"""\
  sl  local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
   0: {_ANY6}:733C {_ANY6}:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4243 1
   1: 000080FE00000000FF00FC0001000000:0017 {_ANY6}:0000 0A 00000000:00000000 00:00000000 0 1000 0 4244 1
"""


@pytest.mark.skipif(sys.byteorder != "little", reason="the sample is a little-endian machine's")
def test_sockets_that_listen() -> None:
    assert sockets.parse_sockets(TCP, 29500) == [("127.0.0.1", 1000, "4242")]  # and not the one in TIME_WAIT
    assert sockets.parse_sockets(TCP6, 29500) == [("::", 1000, "4243")]
    for size in range(len(TCP)):  # a table that was not read to its end
        assert sockets.parse_sockets(TCP[:size], 29500) in ([], [("127.0.0.1", 1000, "4242")])
    assert sockets.parse_sockets(TCP6, 23) == [("fe80::fc:ff:0:1", 1000, "4244")]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_our_own_listener_is_named(family: socket.AddressFamily) -> None:
    with socket.create_server(("", 0), family=family) as server:
        port = server.getsockname()[1]
        (holder,) = sockets.listeners(port)
    assert (holder["pid"], holder["uid"]) == (os.getpid(), os.getuid())
    assert sys.executable in str(holder["command"]) or "pytest" in str(holder["command"])
    assert sockets.listeners(port) == []


@pytest.mark.parametrize("name", ["net/ipv4/ip_local_port_range", "kernel/random/boot_id", "vm/swappiness"])
def test_the_kernels_settings_can_be_read(name: str) -> None:
    """The kernel refuses to read them into a buffer of many MiB."""
    assert files.read(f"/proc/sys/{name}") == Path("/proc/sys", name).read_text()
