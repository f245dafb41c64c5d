"""`mnt stop` on hosts of which one lies about the jobs: no part of a job is left out, and no time is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import pytest
from lying_hosts import WatchedFleet

from mnt.errors import HostError
from mnt.fleet import Fleet
from mnt.inventory.model import Host
from mnt.launch import status
from mnt.launch.backends.local import this_machine
from mnt.launch.jobs import Job, merge_jobs
from mnt.launch.status import _MOST_UNENDED, JobHosts, _list_with_clock
from mnt.launch.stop import result_of_named, stop_jobs, stop_named
from mnt.remote.job import jobctl

Frames = Iterator[tuple[str, Any]]
HOSTS = ("node1", "node2", "node3")
NONE = {"status": "none", "killed": 0, "left": [], "port_free": True}
STOPPED = {"status": "stopped", "killed": 3, "left": [], "port_free": True}


class Hosts(JobHosts):
    """Three hosts, of which each runs some jobs; it counts the trips to them."""

    def __init__(self, running: dict[str, set[str]], answers: dict[str, Any] | None = None) -> None:
        super().__init__(())
        self.trips: list[str] = []
        self._running, self._answers = running, answers or {}
        self.fleet = WatchedFleet(tuple(Host(n, n) for n in HOSTS), dict.fromkeys(HOSTS, self._speak))

    def _speak(self, host: str, program: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        self.trips.append(host)
        runs = self._running.get(host, set())
        honest = {"stopped": {job: STOPPED if job in runs else NONE for job in args["jobs"]}}
        yield "answer", self._answers.get(host, honest)

    def fleet_of(self, job: Job) -> Fleet:
        return self.fleet

    def fleets(self) -> Iterator[tuple[str, Fleet]]:
        yield "ssh", self.fleet


def entry(host: str, nodes: tuple[str, ...], state: str = "running", job: str = "j") -> Any:
    return {
        "job": job,
        "host": host,
        "node_rank": 0,
        "nodes": [{"host": name, "node_rank": rank, "nproc": 1} for rank, name in enumerate(nodes)],
        **dict.fromkeys(("engine", "release", "outside_id", "master", "exit_code", "signal", "failure")),
        **dict.fromkeys(("reason", "started", "ended", "peer")),
        "backend": "ssh",
        "created": 1e9,
        "state": state,
        "listening": False,
    }


def found(*entries: Any) -> list[Job]:
    by_host: dict[str, list[Any]] = {name: [] for name in HOSTS}
    for each in entries:
        by_host[each["host"]].append(each)
    answers: Any = {host: ({"now": 1e9, "jobs": jobs, "left_out": 0}, 0.0) for host, jobs in by_host.items()}
    return merge_jobs(answers)


def stop(hosts: Hosts, *jobs: Job) -> dict[str, Any]:
    with hosts.fleet:
        return stop_jobs(hosts, jobs, grace=0.1).document()


@pytest.mark.parametrize("state", ["running", "lost", "finished"])
def test_a_node_that_no_entry_names_is_stopped_too(state: str) -> None:
    """node1 has deleted node2's files, and says that the job has one node."""
    hosts = Hosts({"node1": {"j"}, "node2": {"j"}})
    document = stop(hosts, *found(entry("node1", ("node1",), state)))
    (job,) = document["jobs"]
    assert {host: each["killed"] for host, each in job["hosts"].items()} == {"node1": 3, "node2": 3}
    assert sorted(hosts.trips) == ["node1", "node2", "node3"]


def test_a_host_that_no_entry_names_and_that_cannot_tell() -> None:
    document = stop(Hosts({"node1": {"j"}}, {"node3": {"stopped": {}}}), *found(entry("node1", ("node1",))))
    assert document["ok"] is False
    assert document["jobs"][0]["hosts"]["node3"]["status"] == "unreachable"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"stopped": None},
        {"stopped": {"other": STOPPED}},
        {"stopped": {"j": STOPPED, "other": STOPPED}},
        {"stopped": {"j": {"status": "stopped"}}},
        {"stopped": {"j": {"refused": {"message": "no", "fix": None}}}},
        {"refused": {"message": "no", "fix": None}},
    ],
)
def test_a_host_that_does_not_answer_what_was_asked(answer: Any) -> None:
    document = stop(Hosts({}, {"node2": answer}), *found(entry("node2", ("node2",))))
    assert document["ok"] is False
    assert document["jobs"][0]["hosts"]["node2"]["status"] == "unreachable"


def test_a_node_that_others_name_and_where_nothing_was_found() -> None:
    nodes = ("node1", "node2")
    document = stop(Hosts({"node1": {"j"}}), *found(entry("node1", nodes)))
    assert document["ok"]
    hosts = document["jobs"][0]["hosts"]
    assert "message" not in hosts["node1"]
    assert hosts["node2"]["message"] == "nothing of the job was found here"
    assert "node3" not in hosts


def test_nodes_that_disagree_are_no_success() -> None:
    nodes = ("node1", "node2", "node3")
    entries = [entry(host, nodes if host != "node2" else ("node2",)) for host in HOSTS]
    assert stop(Hosts({host: {"j"} for host in HOSTS}), *found(*entries))["ok"] is False


def test_many_invented_jobs_cost_one_trip() -> None:
    lies = [entry("node1", HOSTS, "lost", f"fake-{number}") for number in range(40)]
    hosts = Hosts({"node2": {"j"}, "node3": {"j"}})
    jobs = found(*lies, entry("node2", ("node2", "node3")), entry("node3", ("node2", "node3")))
    document = stop(hosts, *jobs)
    assert sorted(hosts.trips) == ["node1", "node2", "node3"]
    assert len(document["jobs"]) == 41
    real = next(each for each in document["jobs"] if each["job"] == "j")
    assert [each["killed"] for each in real["hosts"].values()] == [3, 3]


def test_a_job_that_no_host_lists() -> None:
    for running, listed in (({"node3": {"j"}}, ["node3"]), ({}, None)):
        hosts = Hosts(running)
        with hosts.fleet:
            result = result_of_named("j", stop_named(hosts, "j", grace=0.1), [])
        assert (result and list(result.jobs[0].hosts)) == listed


def test_a_host_to_which_no_login_is_possible_is_tried_once() -> None:
    hosts = Hosts({"node1": {"j"}})
    tried = []

    def task(connection: Any) -> str:
        tried.append(connection.target.name)
        phase = {"node2": "connect", "node3": "command"}.get(connection.target.name)
        if phase is not None:
            raise HostError(connection.target.name, phase, "no")
        return "yes"

    with hosts.fleet:
        for _ in range(2):
            results = hosts.ask(hosts.fleet, task, lambda host: ())
            assert list(results) == list(HOSTS)
            assert {host: error.phase for host, error in results.errors().items()} == {
                "node2": "connect",
                "node3": "command",
            }
    assert sorted(tried) == ["node1", "node1", "node2", "node3", "node3"]


def test_the_jobs_that_a_host_can_invent_are_bounded() -> None:
    invented = [entry("node1", HOSTS, "lost", f"fake-{number}") for number in range(200)]
    ended = [entry("node1", HOSTS, "finished", f"old-{number}") for number in range(200)]

    def speak(host: str, program: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        yield "answer", {"now": time.time(), "jobs": [*invented, *ended]}

    with WatchedFleet((Host("node1", "node1"),), {"node1": speak}) as fleet:
        results = fleet.run(_list_with_clock, "fake-150", 512 * 1024)
    (listed, _) = results.values_by_host()["node1"]
    kept = [each["job"] for each in listed["jobs"] if each["state"] == "lost"]
    assert kept == [*(f"fake-{number}" for number in range(_MOST_UNENDED)), "fake-150"]
    assert len(listed["jobs"]) == len(kept) + 200
    assert listed["left_out"] == 200 - len(kept)
    assert "lists 200 jobs that have not ended" in listed["problems"][0]["message"]


def test_a_host_stops_all_at_once(tmp_path: Path) -> None:
    jobs = [f"none-{number}" for number in range(40)]
    args = {"action": "stop all", "jobs_dir": str(tmp_path), "jobs": jobs, "host": "here", "grace": 0.1}
    answer = jobctl.main(args, lambda frame: None, cast(IO[bytes], None))
    assert {job: each["status"] for job, each in answer["stopped"].items()} == dict.fromkeys(jobs, "none")
    refused = jobctl.main({**args, "jobs": ["../x", "y"]}, lambda frame: None, cast(IO[bytes], None))
    assert "refused" in refused["stopped"]["../x"]
    assert refused["stopped"]["y"]["status"] == "none"


def test_a_host_that_reports_a_job_of_this_machine_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It learns the name from the question."""
    own = entry(this_machine().hosts[0].name, (this_machine().hosts[0].name,)) | {"backend": "local"}

    def speak(host: str, program: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        lie = entry(host, (host,), state="finished") if host == "node2" else None
        yield "answer", {"now": time.time(), "jobs": [lie] if lie else []}

    monkeypatch.setattr(status, "list_jobs_here", lambda *args, **options: {"now": 0.0, "jobs": [own]})
    with JobHosts(tuple(Host(name, name) for name in HOSTS)) as hosts:
        hosts._fleets["ssh"] = WatchedFleet(hosts.hosts, dict.fromkeys(HOSTS, speak))
        listing = hosts.jobs("j")
    assert [(job.job, job.record.backend, job.state) for job in listing.jobs] == [("j", "local", "running")]
    assert {host: error.reason for host, error in listing.errors.items()} == {
        "node2": "it reports job j, which runs on this machine alone"
    }
