"""Merging what the nodes say of a job: its state, its culprit, its exit code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest

from mnt.errors import UsageError
from mnt.launch.backends.api import new_job_id
from mnt.launch.jobs import (
    Job,
    SeveralJobs,
    _Layouts,
    host_of_rank,
    jobs_to_stop,
    may_be_a_job,
    merge_job,
    merge_jobs,
    named_job,
    newest_first,
)
from mnt.remote.common.refusal import Refused
from mnt.remote.job.list import that_fit

NODES = [{"host": f"node{i}", "node_rank": i - 1, "nproc": 2} for i in (1, 2, 3)]


def failure(
    rank: int | None = 0, code: int | None = 1, at: float = 100.0, *, victim: bool = False
) -> dict[str, Any]:
    return {
        "rank": rank,
        "local_rank": rank,
        "exit_code": code,
        "signal": None,
        "message": f"boom in {rank}",
        "traceback": None,
        "time": at,
        "victim": victim,
    }


def entry(host: str, state: str, **changes: Any) -> Any:
    return {
        "job": "j1",
        "host": host,
        "node_rank": 0,
        "nodes": NODES,
        "engine": "fsdp",
        "release": "r1",
        "master": {"addr": "10.0.0.1", "port": 29500},
        "created": 50.0,
        "state": state,
        "exit_code": None,
        "signal": None,
        "failure": None,
        "reason": None,
        "started": 50.0,
        "ended": None,
        "listening": False,
        "peer": None,
        **changes,
    }


def test_ranks_that_never_met_are_worth_a_warning_once_the_job_has_finished() -> None:
    def job(*states: str, alone: bool = True) -> Job:
        nodes = zip(("node1", "node2", "node3"), states, strict=True)
        return merged(*(entry(host, state, **({"alone": True} if alone else {})) for host, state in nodes))

    finished = job("finished", "finished", "finished")
    assert "each rank has trained alone" in finished.warnings[0]
    assert finished.document(1e9)["warnings"] == finished.warnings
    assert job("finished", "finished", "finished", alone=False).warnings == []
    assert job("finished", "running", "finished").warnings == []
    assert job("finished", "failed", "finished").warnings == []


def merged(
    *entries: Any,
    unreachable: tuple[str, ...] = (),
    unasked: tuple[str, ...] = (),
    offsets: dict[str, float] | None = None,
) -> Job:
    by_host = {e["host"]: (e, (offsets or {}).get(e["host"], 0.0)) for e in entries}
    asked = {node["host"] for node in NODES} - set(unasked)
    return merge_job(by_host, unreachable=unreachable, asked=asked)


@pytest.mark.parametrize(
    ("states", "state", "code"),
    [
        (("starting", "running", "running"), "starting", None),
        (("running", "running", "running"), "running", None),
        (("running", "finished", "finished"), "running", None),
        (("running", "failed", "stopped"), "running", None),
        (("finished", "finished", "finished"), "finished", 0),
        (("stopped", "stopped", "stopped"), "stopped", 143),
        (("finished", "stopped", "finished"), "stopped", 143),
        (("failed", "stopped", "stopped"), "failed", 1),
        (("lost", "stopped", "stopped"), "lost", 1),
        (("pending", "pending", "pending"), "pending", None),
        (("running", "pending", "pending"), "running", None),
        (("failed", "pending", "pending"), "failed", 1),
        (("finished", "pending", "pending"), "lost", 1),
    ],
)
def test_state_of_the_whole(states: tuple[str, ...], state: str, code: int | None) -> None:
    job = merged(*(entry(f"node{i}", s) for i, s in enumerate(states, 1)))
    assert (job.state, job.exit_code) == (state, code)


def test_the_first_failure_is_the_culprit_and_its_code_the_jobs() -> None:
    job = merged(
        entry("node1", "failed", failure=failure(0, 1, at=103.0)),
        entry("node2", "failed", failure=failure(3, 7, at=101.0)),
        entry("node3", "stopped"),
    )
    assert job.culprit is not None
    assert job.culprit.document() == {"host": "node2", "rank": 3, "exit_code": 7, "message": "boom in 3"}
    assert job.exit_code == 7


def test_a_clock_that_is_ahead_does_not_hide_the_culprit() -> None:
    job = merged(
        entry("node1", "failed", failure=failure(0, 1, at=103.0)),
        entry("node2", "failed", failure=failure(3, 7, at=700.0)),
        offsets={"node2": 600.0},
    )
    assert job.culprit is not None
    assert job.culprit.host == "node2"


def test_a_culprits_own_word_with_its_traceback_comes_before_what_its_peers_heard() -> None:
    said = {**failure(3, 9, at=100.0), "traceback": "Traceback: .."}
    heard = {"peer": "node2", "failure": failure(3, 9, at=100.0)}
    nodes = (entry("node1", "stopped", reason=heard), entry("node2", "failed", failure=said))
    culprit = merged(*nodes, offsets={"node1": 0.5}).culprit
    assert culprit is not None
    assert (culprit.host, culprit.traceback) == ("node2", "Traceback: ..")


def test_a_victim_is_no_culprit_however_early_it_is_seen() -> None:
    job = merged(
        entry("node1", "failed", failure=failure(0, 1, at=100.0, victim=True)),
        entry("node2", "failed", failure=failure(3, 9, at=101.0)),
    )
    assert job.culprit is not None
    assert job.culprit.rank == 3


def test_only_victims_are_known_the_first_of_them_is_named() -> None:
    job = merged(
        entry("node1", "failed", failure=failure(0, 1, at=100.0, victim=True)),
        entry("node2", "finished"),
        entry("node3", "finished"),
    )
    assert job.culprit is not None
    assert job.culprit.host == "node1"


def test_a_pulled_cable_the_lost_host_is_the_culprit_not_the_nodes_that_missed_it() -> None:
    job = merged(
        entry("node1", "failed", reason={"lost": "node3"}, failure=failure(None, None)),
        entry("node2", "stopped", reason={"peer": "node1", "failure": None}),
        unreachable=("node3",),
    )
    assert job.culprit is not None
    assert (job.culprit.host, job.culprit.rank) == ("node3", None)
    assert job.exit_code == 1
    assert [node.state for node in job.nodes] == ["failed", "stopped", "unreachable"]


def lost(host: str, by: str, **reason: Any) -> Any:
    return entry(by, "failed", reason={"lost": host, **reason}, failure=failure(None, None))


def ranked(entry: Any) -> Any:
    """With the host's own rank."""
    return {**entry, "node_rank": int(entry["host"][4:]) - 1}


@pytest.mark.parametrize("accused", ["node1", "node3"])
def test_a_node_cannot_blame_another_one_for_its_own_failure(accused: str) -> None:
    """node2 fails, which node 0 has heard, and says that it lost contact with another node."""
    heard = {"peer": "node2", "failure": failure(1, 7)}
    for others in (heard, {"request": True}):
        if accused == "node1" and "request" in others:
            continue  # then nobody contradicts it
        nodes = (entry("node1", "stopped", reason=others), lost(accused, "node2"))
        culprit = merged(*map(ranked, (*nodes, entry("node3", "stopped", reason=others)))).culprit
        assert culprit is not None
        assert culprit.host == "node2"


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_who_is_lost_is_decided_by_the_votes(order: tuple[int, ...]) -> None:
    """The master's NIC is down: it misses one of the others, and all others miss it."""
    says = {1: lost("node2", "node1"), 2: lost("node1", "node2"), 3: lost("node1", "node3")}
    culprit = merged(*(ranked(says[each]) for each in order)).culprit
    assert culprit is not None
    assert culprit.host == "node1"
    assert "lost contact with it" in culprit.message


def test_of_two_that_miss_each_other_the_one_whose_nic_is_down_is_the_culprit() -> None:
    for own in ("node1", "node2"):
        other = "node2" if own == "node1" else "node1"
        culprit = merged(lost(other, own, nic="ens3f0"), lost(own, other, nic=None)).culprit
        assert culprit is not None
        assert (culprit.host, culprit.message) == (own, "its training NIC ens3f0 is down")


def test_a_lost_host_that_answers_says_itself_why() -> None:
    culprit = merged(lost("node2", "node1"), entry("node2", "lost")).culprit
    assert culprit is not None
    assert (culprit.host, culprit.message) == ("node2", "its supervisor was killed")


def test_what_a_peer_heard_speaks_for_a_host_that_cannot() -> None:
    heard = {"peer": "node3", "failure": failure(4, 11)}
    job = merged(entry("node1", "stopped", reason=heard), entry("node2", "stopped"), unreachable=("node3",))
    assert job.culprit is not None
    assert (job.state, job.culprit.host, job.exit_code) == ("failed", "node3", 11)


def test_a_node_that_was_never_started_is_absent() -> None:
    job = merged(entry("node1", "stopped"))
    assert [node.state for node in job.nodes] == ["stopped", "absent", "absent"]


def test_a_host_that_was_rebooted_is_the_culprit() -> None:
    """Also if another node has lost contact with it."""
    job = merged(
        entry("node1", "failed", reason={"lost": "node2"}, failure=failure(None, None)),
        entry("node2", "lost", rebooted=True),
        entry("node3", "failed", reason={"lost": "node2"}, failure=failure(None, None)),
    )
    assert job.culprit is not None
    assert job.culprit.sentence() == "node2: it was rebooted while the job ran"


@pytest.mark.parametrize("state", ["finished", "running", "stopped", "lost"])
def test_a_job_is_judged_by_the_hosts_that_were_asked(state: str) -> None:
    job = merged(entry("node1", state), unasked=("node2", "node3"))
    assert job.state == state
    assert [node.state for node in job.nodes] == [state, "unknown", "unknown"]


def test_jobs_are_newest_first() -> None:
    answer = {
        "now": 0.0,
        "jobs": [entry("node1", "finished"), entry("node1", "running", job="j2", created=60.0)],
    }
    jobs = merge_jobs({"node1": (answer, 0.0)})  # type: ignore[dict-item]
    assert [job.job for job in newest_first(jobs, 1e9)] == ["j2", "j1"]


def test_a_list_of_nodes_that_all_entries_have_is_read_once() -> None:
    layouts = _Layouts()
    first, second = (
        layouts.of(entry(host, "running", nodes=[*map(dict, NODES)])) for host in ("node1", "node2")
    )
    assert first is second
    other = layouts.of(entry("node3", "running", nodes=NODES[:2]))
    assert list(layouts.distinct) == [first, other]


def test_a_host_that_left_jobs_out_does_not_say_that_it_had_no_part() -> None:
    one = {"now": 0.0, "jobs": [entry("node1", "finished", nodes=NODES[:2])]}
    for left_out, state, whole in ((0, "absent", "lost"), (7, "unknown", "finished")):
        other = {"now": 0.0, "jobs": [], "left_out": left_out}
        (job,) = merge_jobs({"node1": (one, 0.0), "node2": (other, 0.0)})  # type: ignore[dict-item]
        assert [node.state for node in job.nodes] == ["finished", state]
        assert job.state == whole


def entries(*states: str, local: bool = True) -> list[tuple[dict[str, Any], bool]]:
    """The newest first."""
    return [
        ({"job": f"j{index}", "state": state, "created": 9.0 - index, "x": "y" * 43}, local)
        for index, state in enumerate(states)
    ]


@pytest.mark.parametrize(
    ("most", "wanted", "kept"),
    [
        (1000, None, [3, 0, 1, 2, 4]),
        (400, None, [3, 0, 1]),
        (400, "j4", [3, 0, 4]),
        (400, "j7", [3, 0, 1]),
        (400, "j", [3, 0, 1]),  # too short to mean any of them
        (130, None, [3]),
    ],
)
def test_the_jobs_that_fit_are_the_running_and_the_newest(
    most: int, wanted: str | None, kept: list[int]
) -> None:
    listed = entries("finished", "failed", "stopped", "running", "finished")
    for order in permutations(listed):
        assert that_fit(order, most, wanted) == ([listed[index][0] for index in kept], 5 - len(kept), 0)


def listed_as(*ids: str) -> list[tuple[dict[str, Any], bool]]:
    """Ended jobs of one size, the newest first."""
    found = entries(*["finished"] * len(ids))
    for (entry, _), id in zip(found, ids, strict=True):
        entry["job"] = id
    return found


def test_jobs_that_an_abbreviation_may_mean_are_left_out_last() -> None:
    """Else one of two could be left out, and the other be taken for the only one."""
    ids = ["20261127-101500-3fa90c", "20261127-101501-aaaaaa", "20261126-101500-3fb000"]
    for wanted, kept in (("3fa", [0]), ("3fb", [2]), ("20261126", [2]), ("20261127-101501", [1])):
        found = that_fit(listed_as(*ids), 150, wanted)
        assert [entry["job"] for entry in found.jobs] == [ids[index] for index in kept]
    with pytest.raises(Refused, match="too many jobs that may be '20261127' are here"):
        that_fit(listed_as(*ids), 150, "20261127")


def test_no_running_job_is_left_out() -> None:
    with pytest.raises(Refused, match="too many jobs run"):
        that_fit(entries(*["running"] * 9), 400, None)
    with pytest.raises(Refused, match="too many jobs run"):
        that_fit(entries("lost"), 10, None)


def test_jobs_that_another_node_may_have_invented_hide_none_that_runs() -> None:
    """They are newer, and the disk of jobs_dir has room for any number of them."""
    invented = entries(*["lost", "running"] * 3, local=False)
    real = entries("failed", "running", "lost")
    for entry, _ in real:
        entry["job"], entry["created"] = f"real-{entry['job']}", 1.0
    found = that_fit([*invented, *real], 400, None)
    assert [entry["job"] for entry in found.jobs] == ["real-j1", "real-j2", "j0"]
    assert (found.left_out, found.unended) == (6, 5)
    found = that_fit([*invented, *real], 400, "real-j0")
    assert [entry["job"] for entry in found.jobs] == ["real-j1", "real-j2", "real-j0"]
    assert (found.left_out, found.unended) == (6, 6)


def jobs(*states: str) -> list[Job]:
    return [merged(entry("node1", state, job=f"j{i}", nodes=NODES[:1])) for i, state in enumerate(states)]


def test_stop_means_the_only_running_job() -> None:
    assert [job.job for job in jobs_to_stop(jobs("finished", "running"), everything=False)] == ["j1"]


def test_stop_of_several_lists_them_and_stops_nothing() -> None:
    with pytest.raises(UsageError, match=r"j0 \(running\); j1 \(lost\)") as caught:
        jobs_to_stop(jobs("running", "lost"), everything=False)
    assert caught.value.exit_code == 2


def test_stop_all_takes_what_may_still_be_there() -> None:
    stopping = jobs_to_stop(jobs("running", "finished", "lost", "starting", "failed"), everything=True)
    assert [job.job for job in stopping] == ["j0", "j2", "j3"]


def test_stop_with_nothing_running_is_nothing_to_do() -> None:
    assert jobs_to_stop(jobs("finished"), everything=False) == []


def test_a_job_by_its_name() -> None:
    assert named_job(jobs("running", "finished"), "j1").job == "j1"
    assert named_job(jobs("running", "finished"), None).job == "j0"
    with pytest.raises(UsageError, match="no job 'nope'"):
        named_job(jobs("running"), "nope")
    with pytest.raises(UsageError, match="there are no jobs"):
        named_job([], None)


IDS = ("20261127-101500-3fa90c", "20261127-101500-3fb111", "20261126-091500-20261a", "other")


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        *(pytest.param(id, [id]) for id in IDS),
        ("3fa", IDS[:1]),
        ("3fa90c", IDS[:1]),
        ("20261127-101500-3fb", IDS[1:2]),
        ("20261126", IDS[2:3]),
        ("oth", IDS[3:]),
        ("20261127-101500", IDS[:2]),
        ("2026", IDS[:3]),
        ("20261", IDS[:3]),  # of two ids the beginning, of one also that of the last part
        ("3f", []),  # too short
        ("fa9", []),  # not the beginning
        ("101500", []),
        ("-3fa", []),
        ("", []),
    ],
)
def test_an_abbreviated_id(wanted: str, meant: Sequence[str]) -> None:
    known = [merged(entry("node1", "finished", job=id, nodes=NODES[:1])) for id in IDS]
    if len(meant) == 1:
        assert named_job(known, wanted).job == meant[0]
        return
    message = f"'{wanted}' may be any of {len(meant)} jobs" if meant else f"there is no job '{wanted}'"
    with pytest.raises(SeveralJobs if meant else UsageError, match=message) as caught:
        named_job(known, wanted)
    if meant:
        assert caught.value.fix == "name one: " + "; ".join(f"{id} (finished)" for id in meant)


def test_an_id_is_not_the_abbreviation_of_another() -> None:
    ids = ("3fa", "20261127-101500-3fa90c")
    known = [merged(entry("node1", "finished", job=id, nodes=NODES[:1])) for id in ids]
    assert named_job(known, "3fa").job == "3fa"


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("3fa", True),
        ("20261127-101500-3fa90c", True),
        ("20261127-", True),
        ("2026", True),
        ("3f", False),
        ("3fa90c1", False),
        ("outputs", False),
        ("./3fa", False),
        ("3fa/x", False),
        ("20261127-101500-3fa90c0", False),
    ],
)
def test_what_may_be_a_job_and_not_a_path(text: str, may: bool) -> None:
    assert may_be_a_job(text) == may


def test_the_host_of_a_rank() -> None:
    job = merged(entry("node1", "running"))
    assert [host_of_rank(job, rank) for rank in range(6)] == [
        "node1",
        "node1",
        "node2",
        "node2",
        "node3",
        "node3",
    ]
    with pytest.raises(UsageError, match=r"no rank 6"):
        host_of_rank(job, 6)


def test_an_id_is_fit_for_a_directory_and_sorts_by_time() -> None:
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}", new_job_id())


def test_a_jobs_record_is_in_its_document_and_an_older_mnts_jobs_are_sshs() -> None:
    old = merged(entry("node1", "running")).document(1e9)
    assert (old["backend"], old["outside_id"]) == ("ssh", None)
    new = merged(entry("node1", "running", backend="queue", outside_id="4711")).document(1e9)
    assert (new["job"], new["backend"], new["outside_id"]) == ("j1", "queue", "4711")


def test_a_job_that_is_only_staged_may_be_stopped() -> None:
    job = merged(entry("node1", "pending"))
    assert job.state == "pending"
    assert not job.active
    assert jobs_to_stop([job], everything=False) == [job]


def nodes_of(*hosts: str) -> list[dict[str, Any]]:
    return [{"host": host, "node_rank": rank, "nproc": 2} for rank, host in enumerate(hosts)]


@pytest.mark.parametrize("liar", ["node1", "node2", "node3"])
@pytest.mark.parametrize(
    "lie",
    [
        {"nodes": nodes_of("node9")},
        {"nodes": nodes_of("node1", "node2", "node3", "node9")},
        {"nodes": [], "master": None},
        {"created": 1e9},
        {"engine": "other"},
        {"outside_id": "4711"},
    ],
)
def test_a_host_speaks_only_for_itself(liar: str, lie: dict[str, Any]) -> None:
    """One host says that the job is over, and that it is another job; the others run it."""
    entries = [
        entry(node["host"], "running", node_rank=node["node_rank"])
        if node["host"] != liar
        else entry(liar, "finished", node_rank=node["node_rank"], **lie)
        for node in NODES
    ]
    job = merged(*entries)
    assert [node.host for node in job.nodes] == ["node1", "node2", "node3"]
    assert job.disagreeing == (liar,)
    assert job.state == "running"
    assert jobs_to_stop([job], everything=False) == [job]
    over = merged(*({**each, "state": "finished"} for each in entries))
    assert (over.state, over.exit_code) == ("lost", 1)
    assert over.culprit is not None
    assert over.culprit.sentence() == f"{liar}: it disagrees with most hosts about the job"


def test_a_host_that_is_hidden_by_another_is_found_by_its_own_entry() -> None:
    hider = entry("node1", "finished", nodes=nodes_of("node1"))
    job = merged(hider, entry("node2", "running", node_rank=1))
    assert ("node2", "running") in [(node.host, node.state) for node in job.nodes]
    assert job.disagreeing
    assert job.stoppable


def test_a_failure_that_others_tell_of_does_not_count_against_a_host_that_answers() -> None:
    reason = {"peer": "node1", "failure": failure("bad", 1)}
    job = merged(
        entry("node1", "finished"),
        entry("node2", "stopped", node_rank=1, reason=reason),
        entry("node3", "finished", node_rank=2),
    )
    assert job.state == "stopped"


def test_a_job_from_the_future_is_not_the_newest() -> None:
    made_up = {"now": 1.0, "jobs": [entry("node3", "running", job="fake", created=2.5e11)]}
    honest = {"now": 1.0, "jobs": [entry("node1", "running", job="real", created=60.0)]}
    jobs = merge_jobs({"node3": (made_up, 0.0), "node1": (honest, 0.0)})
    assert [job.job for job in newest_first(jobs, 1e9)] == ["real", "fake"]
