"""The watch of an attached job, over hosts that lie."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import IO, Any, cast

import pytest
from lying_hosts import WatchedFleet
from waiting import PATIENCE

from mnt.inventory.model import Host
from mnt.launch import watch
from mnt.launch.jobs import Description, JobRecord, Member
from mnt.launch.plan import LaunchPlan

NODES = ("node1", "node2", "node3", "node4")


def entry(host: str, state: str) -> dict[str, Any]:
    nothing = ("exit_code", "signal", "failure", "reason", "ended", "outside_id", "master", "peer")
    return {
        **dict.fromkeys(nothing),
        "job": "j",
        "host": host,
        "node_rank": NODES.index(host),
        "nodes": [{"host": name, "node_rank": rank, "nproc": 1} for rank, name in enumerate(NODES)],
        "engine": "fsdp",
        "release": "r1",
        "backend": "ssh",
        "created": 1e9,
        "started": 1e9,
        "listening": True,
        "state": state,
    }


def test_a_node_that_never_answers_a_stop_does_not_delay_that_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """node2 fails; each of the others answers a stop only once all of them are asked."""
    monkeypatch.setattr(watch, "PEERS_FIRST", 0.0)
    others = [name for name in NODES if name != "node2"]
    all_run, all_asked = threading.Barrier(len(NODES)), threading.Barrier(len(others))
    over = threading.Event()

    def script(host: str, program: str, args: dict[str, Any], stdin: IO[bytes]) -> Iterator[tuple[str, Any]]:
        if args["action"] == "stop":
            try:
                all_asked.wait(10)
            finally:
                over.set()
            yield "answer", {"status": "stopped", "killed": 1, "left": [], "port_free": True}
        else:
            yield "frame", {"state": entry(host, "running")}
            yield "frame", {"data": "x", "offset": 1, "stream": "output"}  # the state before has arrived
            all_run.wait(PATIENCE)
            if host != "node2":
                over.wait(PATIENCE)
            yield "answer", {"node": entry(host, "failed" if host == "node2" else "stopped")}

    nodes = [SimpleNamespace(host=name, jobs_dir="~/jobs") for name in NODES]
    members = tuple(Member(name, rank, 1) for rank, name in enumerate(NODES))
    description = Description(members, None, JobRecord("j"), "fsdp", "r1", None)
    plan = cast(LaunchPlan, SimpleNamespace(job="j", grace=0.0, nodes=nodes, description=description))
    told: list[str] = []
    started = time.monotonic()
    with WatchedFleet(tuple(Host(name, name) for name in NODES), dict.fromkeys(NODES, script)) as fleet:
        job = watch.Watch(plan, output=lambda *_: None, tell=told.append).follow(fleet, {})
    assert not all_asked.broken
    assert job.state == "failed"
    assert sorted(told) == [f"{name}: ending, because the job has failed" for name in others]
    assert time.monotonic() - started < PATIENCE
