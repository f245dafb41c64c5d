"""An attached job, if a host says nonsense about its output: its state is watched without it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import IO, Any

import pytest
from lying_hosts import WatchedFleet
from test_fuzz_answers import Frames, entry

from mnt.errors import HostError
from mnt.inventory.model import Host
from mnt.launch import watch
from mnt.launch.jobs import JobRecord
from mnt.launch.plan import LaunchPlan, NodePlan

HOSTS = (Host("node1", "node1"), Host("node2", "node2"))
JOB = entry("node1")["job"]
PLAN = LaunchPlan(
    JobRecord(JOB, "ssh", None),
    "fsdp",
    "torchrun",
    {},
    None,
    "node1",
    "10.0.0.1",
    29500,
    tuple(NodePlan(host.name, rank, 2, "/x", {}, (), (), "/x", None) for rank, host in enumerate(HOSTS)),
    None,
    1.0,
    10.0,
)
NONSENSE: dict[str, tuple[Any, str]] = {
    "values": ({"data": [[]] * 20_000, "offset": 9, "stream": "output"}, "too many values: 40008, more than"),
    "size": ({"data": "x" * 500_000, "offset": 9, "stream": "output"}, "a frame of more than"),
    "shape": ({"data": [1, 2], "offset": 9, "stream": "output"}, "frame.data: "),
    "type": ({"data": "x", "offset": -9, "stream": "output"}, "frame.offset: "),
    "state": ({"state": {"job": 7}}, "state"),
}


def plain(host: str, state: str) -> dict[str, Any]:
    calm = {"failure": None, "reason": None, "signal": None, "exit_code": 0 if state == "finished" else None}
    nodes = [{"host": each.name, "node_rank": rank, "nproc": 2} for rank, each in enumerate(HOSTS)]
    return {**entry(host), **calm, "nodes": nodes, "state": state}


def watched(
    monkeypatch: pytest.MonkeyPatch, frame: Any, listed: Callable[[int], list[dict[str, Any]]]
) -> tuple[Any, list[str], list[str]]:
    """Job, messages and output, where node2 sends this frame, and then lists these jobs when asked again."""
    monkeypatch.setattr(watch, "RETRY_EVERY", 0.01)
    asked = 0
    wrong = threading.Event()

    def speak(host: str, name: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        nonlocal asked
        if name == "job.list":
            asked += 1
            yield "answer", {"now": 1.7e9, "jobs": listed(asked)}
            return
        yield "frame", {"state": plain(host, "running")}
        yield "frame", {"data": f"{host} begins\n", "offset": 13, "stream": "output"}
        if host == "node2":
            wrong.set()
            yield "frame", frame
        assert wrong.wait(30)
        yield "answer", {"node": plain(host, "finished")}

    told: list[str] = []
    shown: list[str] = []
    following = watch.Watch(PLAN, output=lambda host, text: shown.append(text), tell=told.append)
    with WatchedFleet(HOSTS, dict.fromkeys(("node1", "node2"), speak)) as fleet:
        job = following.follow(fleet, {})
    assert following.running() == [node.host for node in job.nodes if node.state == "unreachable"]
    return job, told, shown


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_in_the_output_is_named_and_the_state_is_still_watched(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, problem = NONSENSE[name]
    states = ["running", "running", "finished"]
    job, told, shown = watched(monkeypatch, frame, lambda time: [plain("node2", states[time - 1])])
    assert {node.host: node.state for node in job.nodes} == {"node1": "finished", "node2": "finished"}
    (message,) = told
    assert message.startswith("node2: ")
    assert problem in message
    assert message.endswith("; its further output is not shown")
    assert sorted(shown) == ["node1 begins\n", "node2 begins\n"]


def test_a_failure_of_such_a_node_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    job, _, _ = watched(monkeypatch, NONSENSE["type"][0], lambda time: [plain("node2", "failed")])
    assert {node.host: node.state for node in job.nodes} == {"node1": "finished", "node2": "failed"}


@pytest.mark.parametrize("listed", [[], [plain("node1", "running")], [{"job": 7}]])
def test_a_node_whose_state_is_nonsense_too_is_given_up(
    listed: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, told, _ = watched(monkeypatch, NONSENSE["type"][0], lambda time: listed)
    assert job.nodes[1].state == "unreachable"
    (message,) = told
    assert "frame.offset: " in message
    assert message.endswith("; the host is no longer watched")


def test_the_only_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def speak(host: str, name: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        yield "answer", {"x": 1}

    with (
        WatchedFleet(HOSTS, dict.fromkeys(("node1", "node2"), speak)) as fleet,
        pytest.raises(HostError, match="answer"),
    ):
        watch.Watch(PLAN, output=lambda host, text: None, tell=lambda text: None).follow(fleet, {})
