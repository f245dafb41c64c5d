"""Programs on hosts, over real sshd: noisy shells, no Python, lost connections; and nothing left behind."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faults
import pytest
from lab_fleets import fleet_of
from waiting import PATIENCE, at_most, wait_for
from watching import running

from mnt.errors import HostError
from mnt.fleet import Timeouts
from mnt.inventory import loader
from mnt.lab.lab import Lab, LabHost
from mnt.tasks import bootstrap, bundle
from mnt.tasks.logins import mesh
from mnt.tasks.program import NoPython, ProgramError, run_program

MakeLab = Callable[..., Lab]
Define = Callable[[str], str]

ECHO = """
def main(args, emit, stdin):
    return {"args": args, "stdin": stdin.read().decode()}
"""


@pytest.fixture
def define(monkeypatch: pytest.MonkeyPatch) -> Define:
    """`define(source)`: a program of that source, by its name."""
    sources: dict[str, str] = {}
    real = bundle.packed

    def packed(name: str) -> bytes:
        if name in sources:
            return bootstrap.pack([(f"mnt.remote.{name}", sources[name])])
        return real(name)

    monkeypatch.setattr(bundle, "packed", packed)

    def add(source: str) -> str:
        name = f"trial{len(sources)}"
        sources[name] = source
        return name

    return add


def run(lab: Lab, name: str, args: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Run a program on node1 of a lab."""
    timeouts = options.pop("timeouts", Timeouts())
    python = options.pop("python", None)
    with fleet_of(lab, timeouts=timeouts) as fleet:
        connection = fleet.connection("node1")
        if python is not None:
            object.__setattr__(connection.target, "python", tuple(python))
        return run_program(connection, name, args or {}, **options)


# -- what works


def test_a_real_program_on_all_hosts(lab: Lab) -> None:
    with fleet_of(lab) as fleet:
        results = fleet.run(run_program, "probe.probe", {})
    assert results.errors() == {}
    facts = results.values_by_host()
    assert {name: found["hostname"] for name, found in facts.items()} == {name: name for name in facts}
    assert len(facts) == 4


def test_frames_stream_and_answer(lab: Lab, define: Define) -> None:
    name = define("""
import hashlib
def main(args, emit, stdin):
    emit({"first": stdin.read(4).decode()})
    digest = hashlib.sha256()
    while block := stdin.read(1 << 20):
        digest.update(block)
    return {"sha256": digest.hexdigest(), "args": args["n"]}
""")
    blocks = [os.urandom(700_000) for _ in range(30)]
    frames: list[dict[str, Any]] = []
    answer = run(lab, name, {"n": [1, "é", None]}, stdin=iter([b"head", *blocks]), on_frame=frames.append)
    assert frames == [{"first": "head"}]
    assert answer == {"sha256": hashlib.sha256(b"".join(blocks)).hexdigest(), "args": [1, "é", None]}


def test_stdin_can_follow_the_frames(lab: Lab, define: Define) -> None:
    name = define("""
def main(args, emit, stdin):
    for number in range(3):
        emit({"ask": number})
        assert stdin.readline() == b"answer %d\\n" % number
    return {}
""")
    asked = threading.Semaphore(0)

    def answers() -> Iterator[bytes]:
        for number in range(3):
            assert asked.acquire(timeout=PATIENCE)
            yield b"answer %d\n" % number

    assert run(lab, name, stdin=answers(), on_frame=lambda frame: asked.release()) == {}


def test_much_on_both_streams(lab: Lab, define: Define) -> None:
    name = define("""
import sys
def main(args, emit, stdin):
    sys.stderr.write("e" * 10_000_000)
    for _ in range(10):
        emit({"text": "x" * 1_000_000})
    return {"text": "x" * 1_000_000}
""")
    frames: list[dict[str, Any]] = []
    assert len(run(lab, name, on_frame=frames.append)["text"]) == 1_000_000
    assert [len(frame["text"]) for frame in frames] == [1_000_000] * 10


def test_arguments_larger_than_the_window(lab: Lab, define: Define) -> None:
    text = "y" * 6_000_000
    program = """
import hashlib
def main(args, emit, stdin):
    return {"sha256": hashlib.sha256(args["text"].encode()).hexdigest()}
"""
    assert run(lab, define(program), {"text": text}) == {"sha256": hashlib.sha256(text.encode()).hexdigest()}


# -- hosts that are not as one would wish


def test_a_bashrc_that_prints_and_sleeps(make_lab: MakeLab, define: Define) -> None:
    lab = make_lab()
    host = lab.host("node1")
    noise = "echo noise; printf half; echo read >>times; sleep 2; echo read >>times; cd /\n"
    faults.write_file(host, ".bashrc", noise, user=True)
    assert run(lab, define(ECHO), {"a": 1}, stdin=[b"data"])["stdin"] == "data"
    assert host.exec(["cat", "times"], user=True).stdout == "read\nread\n"  # to its end, and once


@pytest.mark.parametrize("shell", ["dash", "fish", "tcsh", "zsh"])
def test_login_shells(make_lab: MakeLab, define: Define, shell: str) -> None:
    lab = make_lab(count=1)
    path = lab.host("node1").exec(["which", shell]).stdout.strip()
    if not path:
        pytest.skip(f"{shell} is not installed")
    faults.set_shell(lab.host("node1"), path)
    assert run(lab, define(ECHO), {"a": "it's \"!$x\\"})["args"]["a"] == "it's \"!$x\\"


def test_an_interpreter_that_is_not_there(lab: Lab, define: Define) -> None:
    boot = run(lab, define(ECHO), python=["/x/python"])["args"]["_boot"]
    assert boot == {"python": ["python3"], "configured": False, "why": "not found: /x/python"}


def test_an_interpreter_that_hangs(make_lab: MakeLab, define: Define) -> None:
    lab = make_lab()
    host = lab.host("node1")
    faults.write_file(host, "python", "#!/bin/sh\nsleep 4321\n", user=True)
    host.exec(["chmod", "+x", "python"], user=True)
    answer = run(
        lab, define(ECHO), python=["~/python", "-X"], timeouts=Timeouts(interpreter=3), stdin=[b"once"]
    )
    assert answer["args"]["_boot"]["why"] == "did not start within 3 s: ~/python -X"
    assert answer["stdin"] == "once"
    wait_for(lambda: not running(host, "4321"))


def test_no_python_at_all(make_lab: MakeLab, define: Define) -> None:
    lab = make_lab()
    host = lab.host("node1")
    host.exec(["sh", "-c", "rm -f $(which -a python3) /usr/bin/python3* /usr/local/bin/python3*"])
    with pytest.raises(NoPython) as refusal:
        run(lab, define(ECHO), python=["/x/python"])
    assert refusal.value.facts["hostname"] == "node1"
    assert refusal.value.facts["kernel"] == f"Linux {os.uname().release}"
    assert refusal.value.facts["os"]
    assert refusal.value.message == (
        "node1: command: no Python 3.8 or newer; tried /x/python (not found), the usual names and places"
    )


def test_a_login_shell_that_lets_nobody_in(make_lab: MakeLab, define: Define) -> None:
    lab = make_lab()
    faults.set_shell(lab.host("node1"), "/usr/sbin/nologin")
    with pytest.raises(
        HostError,
        match="node1: command: the login shell, /usr/sbin/nologin, runs no command, exit code 1: This",
    ):
        run(lab, define(ECHO))


# -- programs that fail


def test_a_program_that_raises(lab: Lab, define: Define) -> None:
    with pytest.raises(ProgramError) as failure:
        run(lab, define("def main(args, emit, stdin):\n    return 1 / 0  # here\n"))
    assert failure.value.message == "node1: command: trial0: ZeroDivisionError: division by zero"
    assert "return 1 / 0  # here" in failure.value.traceback


def test_a_program_that_dies(lab: Lab, define: Define) -> None:
    name = define("""
import os, sys
def main(args, emit, stdin):
    sys.stderr.write("last words\\n")
    sys.stderr.flush()
    os.abort()
""")
    with pytest.raises(HostError, match="node1: command: trial0: it died, exit code 134: "):
        run(lab, name)


def test_a_program_that_takes_too_long(lab: Lab, define: Define) -> None:
    name = define("import time\ndef main(args, emit, stdin):\n    time.sleep(987)\n")
    with pytest.raises(HostError, match="node1: command: trial0: no answer within 3 s"):
        run(lab, name, timeout=3)


def test_an_answer_that_is_no_object(lab: Lab, define: Define) -> None:
    with pytest.raises(HostError, match="node1: answer: trial0: the answer is no JSON object"):
        run(lab, define("def main(args, emit, stdin):\n    return [1]\n"))


def test_what_the_stream_raises_comes_out(lab: Lab, define: Define) -> None:
    def broken() -> Iterator[bytes]:
        yield b"some"
        raise FileNotFoundError("gone.bin")

    with pytest.raises(FileNotFoundError, match=r"gone\.bin"):
        run(lab, define(ECHO), stdin=broken())


def test_a_child_that_keeps_stdout_does_not_hold_us_up(lab: Lab, define: Define) -> None:
    name = define("""
import subprocess
def main(args, emit, stdin):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    return {"pid": child.pid}
""")
    pid = run(lab, name)["pid"]
    assert lab.host("node1").exec(["kill", str(pid)]).returncode == 0  # it was there


# -- the head goes away

SLEEPER = """
import subprocess, time
def main(args, emit, stdin):
    subprocess.Popen(["sleep", args["child"]])
    subprocess.Popen(["sleep", args["detached"]], start_new_session=True)
    emit({})
    time.sleep(600)
"""


@pytest.fixture
def marks(lab: Lab) -> Iterator[dict[str, str]]:
    """Arguments for SLEEPER that tell its processes from all others."""
    unique = f"{secrets.randbelow(10**9):09d}"
    yield {"child": f"7{unique}", "detached": f"8{unique}"}
    lab.host("node1").exec(["pkill", "-f", f"sleep 8{unique}"])


def left(host: LabHost, marks: dict[str, str]) -> bool:
    """Whether what belongs to the program is still there; what it detached has to be."""
    assert running(host, marks["detached"])
    return bool(running(host, marks["child"]) or running(host, "mnt/remote/boot/boot.py"))


def test_a_dropped_connection_leaves_nothing(lab: Lab, define: Define, marks: dict[str, str]) -> None:
    name = define(SLEEPER)
    started = threading.Event()
    with fleet_of(lab) as fleet:
        connection = fleet.connection("node1")
        timer = threading.Thread(target=lambda: (started.wait(), connection.close()))
        timer.start()
        with pytest.raises(HostError, match="node1: channel: connection lost"):
            run_program(connection, name, marks, on_frame=lambda frame: started.set(), timeout=PATIENCE)
        timer.join()
    wait_for(lambda: not left(lab.host("node1"), marks))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_head_that_is_interrupted_or_killed_leaves_nothing(
    lab: Lab, marks: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    head = tmp_path / "head.py"
    head.write_text(f"""
import json, sys
from mnt.fleet import Fleet
from mnt.inventory import loader
from mnt.tasks import bootstrap, bundle, program
bundle.packed = lambda name: bootstrap.pack([("mnt.remote.sleeper", {SLEEPER!r})])
marks = json.loads(sys.argv[2])
def task(connection):
    def tell(frame): print("started", flush=True)
    return program.run_program(connection, "sleeper", marks, on_frame=tell)
with Fleet(loader.load(sys.argv[1]).hosts) as fleet:
    fleet.run_each(task, {{"node1": ()}})
""")
    command = [sys.executable, str(head), str(lab.inventory_path), json.dumps(marks)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    with at_most(30):
        process.send_signal(number)
        _, errors = process.communicate()
    assert number == signal.SIGKILL or errors.strip().endswith("KeyboardInterrupt")
    wait_for(lambda: not left(lab.host("node1"), marks))


# -- the mesh, and tasks by hand


def test_the_mesh(make_lab: MakeLab) -> None:
    lab = make_lab(count=4)
    faults.stop_sshd(lab.host("node3"))
    faults.write_file(lab.host("node4"), ".ssh/authorized_keys", "", user=True)
    hosts = list(loader.load(str(lab.inventory_path)).hosts)
    with fleet_of(lab) as fleet:
        found = mesh(fleet.connection("node1"), hosts[1:], timeout=PATIENCE)
    assert found["node2"] == {"ok": True, "error": None}
    assert found["node3"]["error"] is not None
    assert "Connection refused" in found["node3"]["error"]
    assert found["node4"]["error"] is not None
    assert "Permission denied" in found["node4"]["error"]


def test_tasks_by_hand(lab: Lab) -> None:
    import mnt.tasks

    directory = Path(mnt.tasks.__file__).parents[1]
    where = f"mnt@{lab.host('node1').spec.management}"
    fab = [sys.executable, "-m", "fabric", "-r", str(directory), "-c", "tasks"]
    login = ["-i", str(lab.directory / "identity"), "-H", where]
    listed = subprocess.run([*fab, "--list"], capture_output=True, text=True, timeout=PATIENCE)
    assert {"probe", "mesh", "program"} <= set(listed.stdout.split())
    done = subprocess.run([*fab, *login, "probe"], capture_output=True, text=True, timeout=PATIENCE)
    assert json.loads(done.stdout)["hostname"] == "node1"
