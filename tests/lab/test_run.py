"""mnt run on real hosts: words, streams, exit codes, views, and an end that leaves nothing running."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import faults
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import PATIENCE, wait_for
from watching import running

from mnt.fleet import Fleet
from mnt.inventory import loader
from mnt.lab.lab import Lab, LabHost
from mnt.run.command import from_words
from mnt.run.outputs import Capture
from mnt.tasks.command import run_command

Mnt = Callable[..., subprocess.CompletedProcess[str]]
MakeLab = Callable[..., Lab]

WORKERS = pytest.mark.parametrize("worker", ["paramiko", "ssh"])


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run_bytes(lab: Lab, *args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "mnt", "run", "-i", str(lab.inventory_path), *args],
        input=stdin,
        capture_output=True,
        timeout=PATIENCE,
    )


@contextmanager
def started(
    lab: Lab, *args: str, stdin: int | None = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """`mnt run` in the background; killed in the end, if need be."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mnt", "run", "-i", str(lab.inventory_path), *args],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


# -- lines, exit codes, and who failed


@WORKERS
def test_each_line_has_its_host_and_the_largest_code_is_ours(mnt: Mnt, worker: str) -> None:
    line = "hostname; echo e-$(hostname) >&2; case $(hostname) in node2) exit 3;; node4) exit 2;; esac"
    done = mnt("run", "--worker", worker, line)
    assert sorted(done.stdout.splitlines()) == [f"node{n} | node{n}" for n in (1, 2, 3, 4)]
    assert [f"node{n} | e-node{n}" in done.stderr for n in (1, 2, 3, 4)] == [True] * 4
    assert done.returncode == 3
    assert done.stderr.splitlines()[-3:] == [
        "exit code 2: node4",
        "exit code 3: node2",
        "2 of 4 hosts failed: -n 'node[2,4]', or -n @failed",
    ]


def test_failed_hosts_are_remembered_until_the_next_run(mnt: Mnt, lab: Lab) -> None:
    assert mnt("run", "-n", "node[3,1]", "false").returncode == 1
    again = mnt("run", "-n", "@failed", "hostname")
    assert sorted(again.stdout.split()[::3]) == ["node1", "node3"]
    empty = mnt("run", "-n", "@failed", "hostname")
    assert empty.returncode == 2
    assert "no host failed in the last run" in empty.stderr


def test_unreachable_hosts_are_255_and_the_others_go_on(make_lab: MakeLab, run_mnt: Mnt) -> None:
    lab = make_lab(count=3)
    faults.stop_sshd(lab.host("node2"))
    faults.silence_sshd(lab.host("node3"))
    done = run_mnt("run", "--connect-timeout", "5", "hostname", lab=lab)
    assert done.returncode == 255
    assert done.stdout == "node1 | node1\n"
    assert "mnt: node2: connect: refused" in done.stderr
    assert "mnt: node3: banner: no SSH banner within 5 s" in done.stderr
    assert "2 of 3 hosts failed: -n 'node[2-3]', or -n @failed" in done.stderr


@pytest.mark.parametrize(
    ("break_host", "phase"), [(faults.stop_sshd, "connect"), (faults.silence_sshd, "banner")]
)
def test_the_phase_by_openssh(
    make_lab: MakeLab, run_mnt: Mnt, break_host: Callable[[LabHost], None], phase: str
) -> None:
    lab = make_lab(count=2)
    break_host(lab.host("node2"))
    done = run_mnt("run", "--worker", "ssh", "--connect-timeout", "5", "hostname", lab=lab)
    assert done.returncode == 255
    assert done.stdout == "node1 | node1\n"
    assert f"mnt: node2: {phase}: ssh: " in done.stderr


@WORKERS
def test_a_command_of_its_own_255_and_signals(mnt: Mnt, worker: str) -> None:
    done = mnt("run", "--worker", worker, "-n", "node1", "exit 255")
    assert (done.returncode, done.stderr.splitlines()[0]) == (255, "exit code 255: node1")
    assert mnt("run", "--worker", worker, "-n", "node1", "kill -9 $$").returncode == 137


def test_usage(mnt: Mnt, tmp_path: Path) -> None:
    for args, message in [
        ([], "CMD, or --script FILE"),
        (["--", "-x", "y"], "not the name of a program: '-x'"),
        (["--json", "-b", "ls"], "--json excludes -b and --diff"),
        (["--script", str(tmp_path / "none")], "No such file"),
    ]:
        done = mnt("run", *args)
        assert done.returncode == 2
        assert message in done.stderr


# -- words

words = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
    | st.sampled_from(
        ["'", '"', "\\", ";", "$(id)", "`id`", "\n", "-n", "--", "!!", "*", "~", "a b", "%", "\x7f"]
    )
    | st.binary(max_size=6).map(lambda data: os.fsdecode(data.replace(b"\0", b""))),
    min_size=1,
    max_size=6,
)


@pytest.fixture(scope="module")
def shells(lab_support: None) -> Iterator[dict[str, tuple[Fleet, str]]]:
    """Login shell -> a fleet and the host in it whose user has that shell."""
    from sessions import new_name

    from mnt.lab.lab import LabRequest, down

    name = new_name()
    names = {"/bin/dash": "node1", "/bin/bash": "node2", "/usr/bin/fish": "node3", "/usr/bin/tcsh": "node4"}
    try:
        lab = Lab.up(LabRequest(name=name, count=4))
        for shell, host in names.items():
            faults.set_shell(lab.host(host), shell)
        with Fleet(loader.load(str(lab.inventory_path)).hosts) as fleet:
            yield {shell: (fleet, host) for shell, host in names.items()}
    finally:
        down(name)


@pytest.mark.parametrize("shell", ["/bin/dash", "/bin/bash", "/usr/bin/fish", "/usr/bin/tcsh"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=words)
def test_odd_words_come_back_byte_for_byte(
    shells: dict[str, tuple[Fleet, str]], shell: str, words: list[str]
) -> None:
    if not os.path.exists(shell):
        pytest.skip(f"{shell} is not installed")
    fleet, host = shells[shell]
    capture = Capture()
    code = run_command(fleet.connection(host), from_words(["printf", "%s\\0", *words]), capture)
    assert capture.out.read() == b"".join(os.fsencode(word) + b"\0" for word in words)
    assert (code, capture.err.read()) == (0, b"")


def test_options_end_at_the_command(mnt: Mnt) -> None:
    assert mnt("run", "-n", "node1", "printf", "[%s]", "-n", "--json").stdout == "node1 | [-n][--json]\n"
    assert mnt("run", "-n", "node1", "--", "printf", "%s", "-b").stdout == "node1 | -b\n"


# -- streams


@WORKERS
def test_bytes_of_one_host_stay_as_they_are(lab: Lab, worker: str) -> None:
    data = os.urandom(300_000) + b"\xff\x00no newline"
    done = run_bytes(lab, "-N", "-n", "node1", "--worker", worker, "cat", stdin=data)
    assert done.stdout == data


def test_bytes_within_lines_stay_as_they_are(lab: Lab) -> None:
    done = run_bytes(lab, "-n", "node[1-2]", r"printf '\377\033[31m\000x\r\n\303('")
    line = b"\xff\x1b[31m\x00x\r\n"
    expected = {b"node%d | " % n + rest for n in (1, 2) for rest in (line, b"\xc3(\n")}
    assert set(done.stdout.splitlines(keepends=True)) == {
        piece for text in expected for piece in text.splitlines(keepends=True)
    }


@WORKERS
def test_standard_input_goes_to_every_host(lab: Lab, worker: str) -> None:
    data = os.urandom(20_000_000)
    done = run_bytes(lab, "--worker", worker, "-f", "3", "sha256sum", "-", stdin=data)
    digest = hashlib.sha256(data).hexdigest()
    assert sorted(done.stdout.decode().splitlines()) == [f"node{n} | {digest}  -" for n in (1, 2, 3, 4)]


def test_input_that_never_ends_and_is_not_wanted(lab: Lab) -> None:
    read, write = os.pipe()
    try:
        with started(lab, "head -c 3", stdin=read) as process:
            os.write(write, b"abcdef")
            assert process.stdout is not None
            assert sorted(process.stdout.read().splitlines()) == [b"node%d | abc" % n for n in (1, 2, 3, 4)]
            assert process.wait(PATIENCE) == 0
    finally:
        os.close(read)
        os.close(write)


def test_50_mb_on_both_streams_in_little_memory(lab: Lab, tmp_path: Path) -> None:
    line = f"head -c 50000000 /dev/zero & yes {'x' * 99} | head -c 50000000 >&2; wait"
    files = tmp_path / "out", tmp_path / "err"
    with open(files[0], "wb") as out, open(files[1], "wb") as err:
        command = [sys.executable, "-m", "mnt", "run", "-i", str(lab.inventory_path), "-n", "node[1-2]", line]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert files[0].read_bytes().count(b"\0") == 2 * 50_000_000
    assert files[1].read_bytes().count(b"x") == 2 * 50_000_000 // 100 * 99
    assert isinstance(usage, resource.struct_rusage)
    assert usage.ru_maxrss < 200_000, f"{usage.ru_maxrss} KiB"


@WORKERS
def test_what_forks_and_keeps_the_streams_is_not_waited_for(make_lab: MakeLab, worker: str) -> None:
    lab = make_lab(count=1)
    done = run_bytes(lab, "--worker", worker, "sleep 1234 & echo started; exit 7")
    assert (done.returncode, done.stdout) == (7, b"node1 | started\n")
    assert running(lab.host("node1"), "sleep 1234") == ["sleep 1234"]
    chatty = run_bytes(lab, "--worker", worker, "(while :; do echo x; sleep 0.01; done) & echo started")
    assert chatty.returncode == 0


def test_start_up_files_that_talk_are_not_heard(lab: Lab) -> None:
    with faults.start_up_file(lab.host("node1"), "echo Welcome; echo warning >&2; printf 'no newline'"):
        done = run_bytes(lab, "-n", "node1", "echo out; echo err >&2")
    assert (done.stdout, done.stderr) == (b"node1 | out\n", b"node1 | err\n")


def test_nobody_reads_the_output(lab: Lab) -> None:
    with started(lab, "-n", "node1", "yes") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"node1 | y\n"
        process.stdout.close()
        process.wait(PATIENCE)
        assert process.returncode not in (0, None)
    wait_for(lambda: not running(lab.host("node1"), "yes"))


# -- views


def test_folded(mnt: Mnt) -> None:
    line = "echo same; case $(hostname) in node2) echo odd;; node3) exit 1;; esac"
    done = mnt("run", "-b", line)
    assert done.returncode == 1
    assert done.stdout == (
        "==== node[1,4] (2) ====\nsame\n"
        "==== node2 (1) ====\nsame\nodd\n"
        "==== node3 (1): exit code 1 ====\nsame\n"
    )


def test_what_differs(mnt: Mnt) -> None:
    line = "echo one; case $(hostname) in node2) echo 2;; *) echo two;; esac; [ $(hostname) != node3 ]"
    done = mnt("run", "--diff", line)
    assert done.stdout == (
        "==== node[1,4] (2) ====\none\ntwo\n"
        "==== node2 (1) ====\n--- node[1,4] stdout\n+++ node2 stdout\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n \n"
        "==== node3 (1): exit code 1 ====\nexit code 1 on node3, 0 on node[1,4]\n"
    )


def test_one_document(mnt: Mnt) -> None:
    done = mnt("run", "--json", "-n", "node[1-2]", r"printf 'a\377'; echo e >&2; [ $(hostname) = node1 ]")
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert {key: document[key] for key in ("ok", "exit_code", "failed")} == {
        "ok": False,
        "exit_code": 1,
        "failed": ["node2"],
    }
    node = document["hosts"]["node1"]
    assert node.pop("seconds") > 0
    assert node == {
        "status": "ok",
        "exit_code": 0,
        "error": None,
        "stdout": "a\ufffd",
        "stdout_base64": "Yf8=",
        "stderr": "e\n",
    }
    assert document["hosts"]["node2"]["status"] == "failed"


def test_files(mnt: Mnt, tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    mnt("run", "--outdir", str(directory), "-n", "node[1-2]", r"hostname; printf '\377' >&2")
    assert {file.name: file.read_bytes() for file in directory.iterdir()} == {
        "node1.out": b"node1\n",
        "node1.err": b"\xff",
        "node2.out": b"node2\n",
        "node2.err": b"\xff",
    }
    assert {file.stat().st_mode & 0o777 for file in directory.iterdir()} == {0o600}
    assert directory.stat().st_mode & 0o777 == 0o700


# -- scripts and sudo


@WORKERS
def test_a_script(mnt: Mnt, lab: Lab, tmp_path: Path, worker: str) -> None:
    script = tmp_path / "a script"
    script.write_text("#!/usr/bin/python3\nimport sys\nprint(sys.argv[1:], sys.stdin.read())\nsys.exit(5)\n")
    done = mnt(
        "run", "--worker", worker, "-n", "node1", "--script", str(script), "a b", "-x", "--json", input="in"
    )
    assert (done.returncode, done.stdout) == (5, "node1 | ['a b', '-x', '--json'] in\n")
    assert lab.host("node1").exec(["find", "/tmp", "-name", "tmp.*"]).stdout == ""


def sudoers(host: LabHost, rule: str) -> None:
    faults.write_file(host, "/etc/sudoers.d/mnt", rule)
    assert host.exec(["chmod", "0440", "/etc/sudoers.d/mnt"]).returncode == 0


@WORKERS
def test_sudo(make_lab: MakeLab, run_mnt: Mnt, worker: str) -> None:
    if not os.path.exists("/usr/bin/sudo"):
        pytest.skip("sudo is not installed")
    lab = make_lab(count=2)
    sudoers(lab.host("node1"), "mnt ALL=(ALL) NOPASSWD: ALL\n")
    sudoers(lab.host("node2"), "mnt ALL=(ALL) ALL\n")
    done = run_mnt(
        "run", "--worker", worker, "--sudo", "id -u; echo e >&2; cat; exit 3", lab=lab, input="in\n"
    )
    assert done.returncode == 255
    assert done.stdout == "node1 | 0\nnode1 | in\n"
    assert "node1 | e\n" in done.stderr
    assert "mnt: node2: command: sudo wants a password\n  fix: a NOPASSWD rule" in done.stderr
    with started(lab, "--worker", worker, "--sudo", "-n", "node1", "sleep 1234") as process:
        wait_for(lambda: running(lab.host("node1"), "sleep 1234") != [])
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    wait_for(lambda: running(lab.host("node1"), "sleep 1234") == [])


# -- its end


@pytest.mark.parametrize("with_input", [False, True], ids=["", "with input"])
@WORKERS
def test_ctrl_c_keeps_what_has_come_and_ends_it_everywhere(
    lab: Lab, worker: str, with_input: bool, tmp_path: Path
) -> None:
    line = "echo began; [ $(hostname) != node1 ] || exit 0; trap '' TERM HUP INT; sleep 4321 | sleep 4321"
    (tmp_path / "input").write_bytes(b"x" * 3_000_000)

    def has_come(host: str) -> bool:
        file = tmp_path / "out" / f"{host}.out"
        return file.exists() and file.read_bytes() == b"began\n"

    with open(tmp_path / "input", "rb") as file:
        stdin = file.fileno() if with_input else subprocess.DEVNULL
        options = ("--worker", worker, "-b", "--outdir", str(tmp_path / "out"))
        with started(lab, *options, line, stdin=stdin) as process:
            wait_for(lambda: all(has_come(f"node{n}") for n in (1, 2, 3, 4)))
            wait_for(lambda: all(running(lab.host(f"node{n}"), "sleep 4321") for n in (2, 3, 4)))
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert out.decode() == "==== node1 (1) ====\nbegan\n" + "".join(
        f"==== node{n} (1): not done ====\nbegan\n" for n in (2, 3, 4)
    )
    assert "not done: node[2-4]\n3 of 4 hosts failed: -n 'node[2-4]', or -n @failed\n" in err.decode()
    wait_for(lambda: not any(running(host, "sleep 4321") for host in lab.hosts))


def test_a_head_that_dies_ends_it_everywhere(lab: Lab) -> None:
    with started(lab, "sleep 4322") as process:
        wait_for(lambda: all(running(host, "sleep 4322") for host in lab.hosts))
        process.kill()
    wait_for(lambda: not any(running(host, "sleep 4322") for host in lab.hosts))


@WORKERS
def test_a_limit_of_time(mnt: Mnt, lab: Lab, worker: str) -> None:
    line = "echo began; [ $(hostname) = node1 ] || sleep 4323"
    done = mnt("run", "--worker", worker, "-n", "node[1-2]", "--timeout", "5", line)
    assert done.returncode == 255
    assert sorted(done.stdout.splitlines()) == ["node1 | began", "node2 | began"]
    assert "mnt: node2: command: not done within 5 s" in done.stderr
    wait_for(lambda: not running(lab.host("node2"), "sleep 4323"))


def test_a_limit_of_time_for_one_that_talks(mnt: Mnt) -> None:
    done = mnt("run", "-n", "node1", "--timeout", "1", "yes | head -c 100000000000 >&2")
    assert done.returncode == 255
    assert "mnt: node1: command: not done within 1 s" in done.stderr[-1000:]


def test_the_first_failure_can_be_the_last(mnt: Mnt, lab: Lab) -> None:
    done = mnt("run", "--fail-fast", "[ $(hostname) != node2 ] || exit 4; sleep 4324")
    assert done.returncode == 4
    assert "exit code 4: node2\nnot done: node[1,3-4]\n" in done.stderr
    wait_for(lambda: not any(running(host, "sleep 4324") for host in lab.hosts))


def test_a_login_shell_that_runs_nothing(make_lab: MakeLab, run_mnt: Mnt) -> None:
    lab = make_lab(count=1)
    faults.set_shell(lab.host("node1"), "/usr/bin/false")
    done = run_mnt("run", "hostname", lab=lab)
    assert done.returncode == 255
    assert "mnt: node1: command: the login shell, /usr/bin/false, runs no command" in done.stderr
    by_ssh = run_mnt("run", "--worker", "ssh", "hostname", lab=lab)
    assert by_ssh.returncode == 255
    assert "mnt: node1: command: the login shell runs no command" in by_ssh.stderr
