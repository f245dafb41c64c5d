"""One node of a job lies to the head: about its end, about the job, and about the other nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, Any

import pytest
from lying_hosts import LyingConnection, speaking

from mnt.errors import HostError, NeverStarted, UsageError
from mnt.fleet import Fleet, HostConnection
from mnt.fleet.login.shared import Shared
from mnt.inventory.model import Host
from mnt.launch import watch
from mnt.launch.jobs import Job, JobRecord, host_of_rank, merge_job, merge_jobs, newest_first
from mnt.launch.plan import LaunchPlan, NodePlan
from mnt.launch.starting import start_job
from mnt.tasks.job import await_port, await_ranks, list_jobs, read_logs

Frames = Iterator[tuple[str, Any]]
Change = dict[str, Any]


def plan_of(*names: str) -> LaunchPlan:
    nodes = tuple(
        NodePlan(name, rank, 1, "/", {}, ("python",), (), "/jobs", None) for rank, name in enumerate(names)
    )
    record = JobRecord("j")
    return LaunchPlan(
        record, "fsdp", "torchrun", {}, "r1", names[0], "10.0.0.1", 29500, nodes, None, 0.1, 5.0
    )


def entry(plan: LaunchPlan, host: str, /, **changes: Any) -> Any:
    return {
        "job": plan.job,
        "host": host,
        "node_rank": [node.host for node in plan.nodes].index(host),
        "nodes": [{"host": n.host, "node_rank": n.node_rank, "nproc": n.nproc} for n in plan.nodes],
        "engine": plan.engine,
        "release": plan.release,
        "backend": "ssh",
        "outside_id": None,
        "master": {"addr": plan.master_addr, "port": plan.master_port},
        "created": 1e9,
        "state": "finished",
        "exit_code": 0,
        "signal": None,
        "failure": None,
        "reason": None,
        "started": 1e9,
        "ended": 1e9,
        "listening": True,
        "peer": None,
        **changes,
    }


def watched(monkeypatch: pytest.MonkeyPatch, plan: LaunchPlan, lie: Change, broken: set[str]) -> Job:
    """The end of a job whose node1 lies. The `broken` hosts cannot be reached; the others have finished."""
    monkeypatch.setattr(watch, "RETRY_EVERY", 0.05)
    monkeypatch.setattr(watch, "GIVE_UP_AFTER", 0.2)
    monkeypatch.setattr(watch, "GIVE_UP_ALONE", 1.0)

    def speak(host: str, program: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        said = entry(plan, host, **(lie if host == "node1" else {}))
        yield "frame", {"state": said}
        yield "answer", {"node": said}

    class Broken(LyingConnection):
        def open(self) -> None:
            raise HostError(self.target.name, "connect", "timed out")

    def connect(host: Host, shared: Shared) -> HostConnection:
        kind = Broken if host.name in broken else LyingConnection
        return kind(host, shared, command=speaking(speak))

    hosts = [Host(node.host, node.host) for node in plan.nodes]
    with Fleet(hosts, connect=connect) as fleet:
        return watch.Watch(plan, output=lambda *_: None, tell=lambda _: None).follow(fleet, {})


@pytest.mark.parametrize("broken", [{"node2"}, {"node2", "node3"}])
@pytest.mark.parametrize(
    "lie",
    [
        {},
        {"nodes": [{"host": "node1", "node_rank": 0, "nproc": 1}]},
        {"nodes": []},
        {"nodes": [{"host": "node9", "node_rank": 0, "nproc": 1}]},
        {"node_rank": 2, "engine": "other"},
    ],
)
def test_what_one_node_says_does_not_make_the_job_a_success(
    monkeypatch: pytest.MonkeyPatch, lie: Change, broken: set[str]
) -> None:
    job = watched(monkeypatch, plan_of("node1", "node2", "node3"), lie, broken)
    assert [node.host for node in job.nodes] == ["node1", "node2", "node3"]
    assert {node.host for node in job.nodes if node.state == "unreachable"} == broken
    assert job.exit_code == 1
    assert job.culprit is not None
    assert job.culprit.host in broken


@pytest.mark.parametrize(
    "lie", [{"nodes": [{"host": "node1", "node_rank": 0, "nproc": 1}]}, {"release": "r2"}, {"engine": None}]
)
def test_a_node_that_describes_another_job_is_the_one_to_blame(
    monkeypatch: pytest.MonkeyPatch, lie: Change
) -> None:
    """Also with two nodes: the plan says what is right."""
    job = watched(monkeypatch, plan_of("node1", "node2"), lie, set())
    assert [node.host for node in job.nodes] == ["node1", "node2"]
    assert (job.disagreeing, job.exit_code) == (("node1",), 1)
    assert job.culprit is not None
    assert job.culprit.host == "node1"


@pytest.mark.parametrize("lie", [{"job": "other"}, {"host": "node2"}, {"state": "running"}])
def test_an_entry_of_another_job_or_host_is_a_wrong_answer(
    monkeypatch: pytest.MonkeyPatch, lie: Change
) -> None:
    job = watched(monkeypatch, plan_of("node1", "node2"), lie, set())
    assert job.job == "j"
    assert [node.state for node in job.nodes] == ["unreachable", "finished"]
    assert job.culprit is not None
    assert (job.culprit.host, job.exit_code) == ("node1", 1)


@pytest.mark.parametrize("lie", [{"host": "node2"}, {"host": "node9"}, {"job": "other"}])
@pytest.mark.parametrize(
    "ask",
    [
        lambda connection: await_port(connection, "/jobs", "j", "node1"),
        lambda connection: await_ranks(connection, "/jobs", "j", "node1"),
        lambda connection: read_logs(connection, "/jobs", "j", "node1", on_frame=lambda frame: None),
    ],
)
def test_no_task_returns_an_entry_of_another_job_or_host(
    ask: Callable[[HostConnection], object], lie: Change
) -> None:
    plan = plan_of("node1", "node2")

    def speak(host: str, program: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        node = entry(plan, host, **lie)
        yield "answer", {"pid": 5, "listening": True, "peer": None, "started": True, "node": node}

    with pytest.raises(HostError, match=r"^node1: answer: it reports (a )?job "):
        ask(LyingConnection(Host("node1", "node1"), command=speaking(speak)))


@pytest.mark.parametrize("named", ["node1", "node2", "node9"])
def test_a_master_that_fails_at_its_start_fails_itself(named: str) -> None:
    plan = plan_of("node1", "node2")
    failure = {"rank": None, "local_rank": None, "exit_code": 1, "signal": None, "message": "GPU 3 is gone"}
    failure |= {"traceback": None, "time": None, "victim": False}

    def speak(host: str, program: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        failed = {"state": "failed", "listening": False, "exit_code": 1, "failure": failure}
        node = entry(plan, host, **failed | {"host": named})
        answers = {
            "stage": {"spec": "/s", "program": "/p"},
            "spawn": {"pid": 5, "peer": None},
            "await port": {"listening": False, "node": node},
            "stop": {"status": "stopped", "killed": 0, "left": [], "port_free": True},
        }
        yield "answer", answers.get(args["action"], {})

    def connect(host: Host, shared: Shared) -> HostConnection:
        return LyingConnection(host, shared, command=speaking(speak))

    hosts = [Host(node.host, node.host) for node in plan.nodes]
    with Fleet(hosts, connect=connect) as fleet, pytest.raises(NeverStarted) as refusal:
        start_job(fleet, plan, lambda text: None)
    assert refusal.value.host == "node1"
    assert refusal.value.message.startswith("the job did not start: node1: ")


def merged(*entries: Any) -> Job:
    answers: Any = {e["host"]: ({"now": 1e9, "jobs": [e], "left_out": 0}, 0.0) for e in entries}
    (job,) = merge_jobs(answers)
    return job


@pytest.mark.parametrize("liar", ["node1", "node2"])
@pytest.mark.parametrize("lie", [{"engine": "x"}, {"nodes": []}, {"created": 2.0}])
def test_of_two_that_disagree_neither_is_usual(liar: str, lie: Change) -> None:
    plan = plan_of("node1", "node2")
    job = merged(*(entry(plan, host, **(lie if host == liar else {})) for host in ("node1", "node2")))
    assert job.disagreeing == ("node1", "node2")
    assert (job.state, job.exit_code, job.culprit) == ("lost", 1, None)


def test_without_a_majority_nothing_is_shown_that_one_host_alone_says() -> None:
    """node1 claims to be the only node of a job that ran on node2 alone."""
    forged = {"nodes": [{"host": "node9", "node_rank": 0, "nproc": 1}], "master": None, "created": 2.0}
    forged |= {"command": "forged.py", "engine": "forged", "backend": "forged", "outside_id": "forged"}
    plan = plan_of("node2")
    liar = entry(plan_of("node1"), "node1", **forged)
    job = merged(liar, entry(plan, "node2", command="train.py"))
    assert "forged" not in str(job.document(1e9))
    assert (job.command, job.created, job.master, job.engine) == (None, None, None, None)
    assert (job.record, job.release) == (JobRecord("j"), "r1")  # of the release, both say the same
    assert sorted(node.host for node in job.nodes) == ["node1", "node2"]
    assert newest_first([job, merged(entry(plan, "node2"))], 2e9)[1] == job


def test_two_camps_of_the_same_size() -> None:
    plan = plan_of("node1", "node2", "node3", "node4")
    lies: dict[str, Change] = {"node1": {"engine": "x"}, "node2": {"engine": "x"}}
    job = merged(*(entry(plan, node.host, **lies.get(node.host, {})) for node in plan.nodes))
    assert len(job.disagreeing) == 4
    assert job.culprit is None


@pytest.mark.parametrize("lost", ["node2", "node9"])
def test_who_has_finished_or_is_no_node_was_not_lost(lost: str) -> None:
    plan = plan_of("node1", "node2")
    reason = {"lost": lost, "message": "m", "time": 1e9}
    job = merged(entry(plan, "node1", state="failed", exit_code=1, reason=reason), entry(plan, "node2"))
    assert job.culprit is not None
    assert job.culprit.host == "node1"


FORGED = {
    **{"rank": 2, "local_rank": 0, "exit_code": 66, "signal": None, "time": 1.0, "victim": False},
    **{"message": "node3's disk holds corrupt data", "traceback": "forged"},
}


def ended_by(host: str, **changes: Any) -> Change:
    return {"state": "failed", "exit_code": 1, "reason": {"peer": host, "failure": FORGED, **changes}}


def with_node3(state: str, *entries: Any) -> Job:
    """What node1 and node2 say; node3 has no part of the job, or cannot be asked."""
    own = {each["host"]: (each, 0.0) for each in entries}
    return merge_job(
        own,
        unreachable={"node3"} if state == "unreachable" else set(),
        asked={"node1", "node2"} | ({"node3"} if state == "absent" else set()),
        planned=plan_of("node1", "node2", "node3").description,
    )


@pytest.mark.parametrize("state", ["absent", "unreachable"])
def test_a_worker_does_not_say_how_another_one_failed(state: str) -> None:
    plan = plan_of("node1", "node2", "node3")
    job = with_node3(state, entry(plan, "node1"), entry(plan, "node2", **ended_by("node3")))
    assert [node.state for node in job.nodes] == ["finished", "failed", state]
    assert job.culprit is not None
    assert (job.culprit.rank, job.culprit.traceback) == (None, None)
    assert "corrupt" not in job.culprit.sentence()
    if state == "absent":
        assert job.culprit.sentence() == "node2: it says that node3 has failed"
    else:
        assert job.culprit.sentence() == "node3: it cannot be reached"


def test_the_master_says_how_an_unreachable_worker_failed_but_by_its_name() -> None:
    plan = plan_of("node1", "node2", "node3")
    told = {**ended_by("node3"), "state": "stopped", "exit_code": None}
    job = with_node3("unreachable", entry(plan, "node1", **told), entry(plan, "node2", **told))
    assert job.culprit is not None
    assert job.culprit.traceback is None
    assert job.culprit.sentence() == (
        "node3, rank 2: as node1 says: node3's disk holds corrupt data (exit code 66)"
    )
    job = with_node3("absent", entry(plan, "node1", **told), entry(plan, "node2", **told))
    assert job.culprit is None


def test_no_word_counts_of_a_node_that_was_the_first_to_end() -> None:
    plan = plan_of("node1", "node2", "node3")
    liar = entry(plan, "node1", **ended_by("node3"))
    job = with_node3("unreachable", liar, entry(plan, "node2", **ended_by("node1"), failure=None))
    assert job.culprit is not None
    assert "corrupt" not in job.culprit.sentence()


@pytest.mark.parametrize("first", [9, 0])
def test_the_host_of_a_rank_is_that_of_most_nodes(first: int) -> None:
    plan = plan_of("node1", "node2", "node3")
    lie = [{"host": node.host, "node_rank": node.node_rank, "nproc": first or 1} for node in plan.nodes]
    lie = lie[: 3 if first else 1]
    job = merged(entry(plan, "node1", nodes=lie), entry(plan, "node2"), entry(plan, "node3"))
    assert [host_of_rank(job, rank) for rank in range(3)] == ["node1", "node2", "node3"]


def test_no_host_of_a_rank_if_two_disagree() -> None:
    plan = plan_of("node1", "node2")
    lie = [{"host": "node1", "node_rank": 0, "nproc": 9}]
    with pytest.raises(UsageError, match="disagree about its nodes"):
        host_of_rank(merged(entry(plan, "node1", nodes=lie), entry(plan, "node2")), 1)


def test_a_job_of_too_many_nodes() -> None:
    plan = plan_of("node1", "node2")
    many = [{"host": f"n{number}", "node_rank": number, "nproc": 1} for number in range(17_000)]

    def speak(host: str, program: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        yield "answer", {"now": 1e9, "jobs": [entry(plan, host, nodes=many)]}

    connection = LyingConnection(Host("node1", "node1"), command=speaking(speak))
    with pytest.raises(HostError, match=r"^node1: answer: answer\.jobs"):
        list_jobs(connection, "/jobs", "node1", most=1 << 20)
