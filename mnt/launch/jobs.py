"""A job as the head sees it: the entries of its nodes, merged into one state, culprit and exit code. Pure.

Each node reports only on itself (`mnt.tasks.job.JobEntry`). Only a comparison of all nodes, with corrected
clocks, shows which failure came first, and which ones were its consequences.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from mnt.errors import NeverStarted, UsageError
from mnt.launch.culprit import Culprit, find_culprit, heard
from mnt.launch.nodes import Node
from mnt.remote.common.forms import ABBREVIATION, may_mean

if TYPE_CHECKING:
    from mnt.tasks.job import JobEntry, Jobs

T = TypeVar("T")

# As `mnt.launch.backends.api.new_job_id` makes it; and what may stand for it (`may_mean`).
JOB_ID = r"\A[0-9]{8}-[0-9]{6}-[0-9a-f]{6}\Z"
_BEGINNING = r"\A[0-9]{1,8}(?:-[0-9]{0,6}(?:-[0-9a-f]{0,6})?)?\Z"
_LAST_PART = r"\A[0-9a-f]{1,6}\Z"
_SKEW = 300.0  # seconds between the clocks of two heads
ACTIVE = frozenset({"starting", "running"})


@dataclass(frozen=True)
class JobRecord:
    """A job as its backend knows it."""

    job: str
    backend: str = "ssh"  # what started it
    outside_id: str | None = None  # its id in an outside scheduler (a Slurm job id); None: it has none


class Member(NamedTuple):
    """A node as the description of a job has it."""

    host: str
    node_rank: int
    nproc: int


class Description(NamedTuple):
    """What the entries of one job have in common."""

    nodes: tuple[Member, ...]
    master: str | None  # host:port
    record: JobRecord
    engine: str | None
    release: str | None
    created: float | None  # None in a plan: it is known when the job is staged
    command: str | None = None  # the program and its arguments, for people; None: unknown


@dataclass(frozen=True)
class Job:
    record: JobRecord
    engine: str | None
    release: str | None
    created: float | None  # epoch seconds; None: unknown
    master: str | None  # host:port of the rendezvous, with the training address
    nodes: tuple[Node, ...]  # in rank order
    command: str | None = None  # the program and its arguments, for people; None: unknown
    disagreeing: tuple[str, ...] = ()  # hosts that disagree with the plan or with most hosts about the job
    agreed: bool = True  # the plan, or more than half of the entries, say what is right; else all disagree
    layout: tuple[Member, ...] | None = None  # in rank order; None: most hosts have no common list of nodes

    @property
    def job(self) -> str:
        return self.record.job

    @property
    def active(self) -> bool:
        """Whether any node still runs the job."""
        return any(node.state in ACTIVE for node in self.nodes)

    @property
    def stoppable(self) -> bool:
        """Whether anything of it may be left on a host: it runs, is staged, or a supervisor died."""
        unclear = any(node.state in ("pending", "lost") for node in self.nodes)
        return self.active or unclear or bool(self.disagreeing)

    @property
    def state(self) -> str:
        """pending (no node has started yet), starting, running, finished, failed, stopped or lost."""
        states = {node.state for node in self.nodes} - {"unknown"}
        if any(heard(self.nodes)):
            states.add("failed")
        if self.disagreeing:
            states.add("lost")
        for state in ("starting", "running", "failed", "lost", "stopped"):
            if state in states:
                return state
        if "pending" in states and states <= {"pending", "absent"}:
            return "pending"
        return "finished" if states == {"finished"} else "lost"

    @property
    def culprit(self) -> Culprit | None:
        """The first failure, if the job failed or was lost."""
        if self.state not in ("failed", "lost"):
            return None
        liars = self.disagreeing if self.agreed else ()
        disagreeing = (Culprit(host, None, None, _DISAGREES) for host in liars)
        return find_culprit(self.nodes) or next(disagreeing, None)

    @property
    def rankless(self) -> bool:
        """Whether it is known that no rank of it was ever started on any node."""
        return all(
            node.state == "absent" or (node.entry is not None and bool(node.entry.get("rankless")))
            for node in self.nodes
        )

    @property
    def exit_code(self) -> int | None:
        """The exit code of `mnt launch`; None while the job runs or is pending.

        It is the culprit's own code, or 1 if that is unknown; 143, as after SIGTERM, if the job was stopped;
        125 if it failed before any rank was started.
        """
        if self.active or self.state == "pending":
            return None
        if self.state == "finished":
            return 0
        if self.state == "stopped":
            return 143
        if self.rankless:
            return NeverStarted.exit_code
        culprit = self.culprit
        return (culprit.exit_code if culprit else None) or 1

    def seconds(self, now: float) -> float | None:
        """How long it has run until `now` (epoch seconds), or ran, by the head's clock.

        None if that is unknown: it never started.
        """
        parts = [(node.entry, node.clock_offset) for node in self.nodes if node.entry is not None]
        started = [entry["started"] - offset for entry, offset in parts if entry["started"]]
        ended = [entry["ended"] - offset for entry, offset in parts if entry["ended"]]
        if not started or not (self.active or ended):
            return None
        end = now if self.active else max(ended)
        return max(0.0, end - min(started))

    @property
    def warnings(self) -> list[str]:
        """What looks wrong in a job that has finished."""
        alone = any(node.entry is not None and node.entry.get("alone") for node in self.nodes)
        return [_ALONE] if alone and self.state == "finished" else []

    def document(self, now: float) -> dict[str, Any]:
        """The job as `mnt status --json` prints it, at `now` (epoch seconds)."""
        culprit = self.culprit
        return {
            **asdict(self.record),
            "state": self.state,
            "engine": self.engine,
            "release": self.release,
            "command": self.command,
            "created": self.created,
            "seconds": self.seconds(now),
            "nodes": [
                {
                    "host": node.host,
                    "node_rank": node.node_rank,
                    "state": node.state,
                    "exit_code": node.exit_code,
                    "gpus": node.subset,
                }
                for node in self.nodes
            ],
            "disagreeing": list(self.disagreeing),
            "culprit": culprit.document() if culprit else None,
            "warnings": self.warnings,
        }


def merge_jobs(answers: Mapping[str, tuple[Jobs, float]], unreachable: Iterable[str] = ()) -> list[Job]:
    """All jobs that the hosts reported, in no order.

    Args:
        answers: by host, the answer of `list_jobs` and the host's clock offset in seconds.
        unreachable: hosts that could not be asked.
    """
    entries: dict[str, dict[str, tuple[JobEntry, float]]] = {}
    for host, (jobs, offset) in answers.items():
        for entry in jobs["jobs"]:
            entries.setdefault(entry["job"], {})[host] = (entry, offset)
    away = set(unreachable)
    # A host that has left out some jobs does not say that it has no part of a job.
    silent = {host for host, (jobs, _) in answers.items() if jobs.get("left_out")}
    asked = (away | answers.keys()) - silent
    return [merge_job(by_host, unreachable=away, asked=asked) for by_host in entries.values()]


def newest_first(jobs: Iterable[Job], now: float) -> list[Job]:
    """A job that is said to be from after `now` (epoch seconds) comes last: one host alone could invent it.

    So does a job of which most hosts do not say when it was made.
    """
    latest = now + _SKEW

    def order(job: Job) -> tuple[float, str]:
        return (job.created if job.created and job.created <= latest else 0.0, job.job)

    return sorted(jobs, key=order, reverse=True)


def merge_job(
    entries: Mapping[str, tuple[JobEntry, float]],
    *,
    unreachable: Collection[str],
    asked: Collection[str],
    planned: Description | None = None,
) -> Job:
    """One job from its nodes' entries, at least one, each with its host's clock offset.

    An entry counts for its own host only. What all entries should have in common, such as the list of nodes,
    is taken from the plan. Without one, it is taken as more than half of the entries have it; if there is no
    such majority, all of them disagree, and of each part only what more than half have is shown. A node that
    only some of them name is included if its host has an entry or should have been asked, so that no host can
    hide another. Hosts that were not `asked` do not count for the state.

    Args:
        planned: of a job that this process has launched; it has these nodes, and no others.
    """
    own = {host: entry for host, (entry, _) in entries.items()}
    layouts = _Layouts()
    said = {host: _description(entry, layouts.of(entry)) for host, entry in own.items()}
    usual = _most(said.values())
    shown = planned or usual or _undisputed(own, said.values())
    created = _most(each.created for each in said.values())
    if planned is not None:
        said = {host: each._replace(created=None) for host, each in said.items()}
        usual = planned
    ranks = {member.host: member.node_rank for member in shown.nodes}
    if planned is None:
        for host, entry in own.items():
            ranks.setdefault(host, entry["node_rank"])
        for layout in layouts.distinct:
            for member in layout:
                if member.host in asked or member.host in unreachable:
                    ranks.setdefault(member.host, member.node_rank)
    nodes = []
    for host, rank in sorted(ranks.items(), key=lambda item: item[1]):
        found, offset = entries.get(host, (None, 0.0))
        missing = "unreachable" if host in unreachable else "absent" if host in asked else "unknown"
        state = found["state"] if found else missing
        nodes.append(Node(host, rank, state, found, offset))
    return Job(
        record=shown.record,
        engine=shown.engine,
        release=shown.release,
        created=created,
        master=shown.master,
        nodes=tuple(nodes),
        command=shown.command,
        disagreeing=tuple(host for host, each in said.items() if each != usual),
        agreed=usual is not None,
        layout=shown.nodes if planned else _most(each.nodes for each in said.values()),
    )


def _most(values: Iterable[T]) -> T | None:
    """The value of more than half; None: there is none."""
    counts = Counter(values)
    value, count = counts.most_common(1)[0]
    return value if 2 * count > counts.total() else None


def _undisputed(own: Mapping[str, JobEntry], said: Collection[Description]) -> Description:
    """Of each part, what more than half of the entries say."""
    job = next(iter(own.values()))["job"]
    backend = _most(each.record.backend for each in said)
    return Description(
        _most(each.nodes for each in said) or (),
        _most(each.master for each in said),
        JobRecord(job, backend or JobRecord.backend, _most(each.record.outside_id for each in said)),
        _most(each.engine for each in said),
        _most(each.release for each in said),
        _most(each.created for each in said),
        _most(each.command for each in said),
    )


class _Layouts:
    """The lists of nodes in the entries of a job: one tuple for all that are the same, as most are.

    With a tuple for each entry, a job of 1024 nodes would have a million members.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Member, ...]] = {}

    def of(self, entry: JobEntry) -> tuple[Member, ...]:
        text = msgspec.json.encode(entry["nodes"])
        if text not in self._known:
            self._known[text] = tuple(
                Member(each["host"], each["node_rank"], each["nproc"]) for each in entry["nodes"]
            )
        return self._known[text]

    @property
    def distinct(self) -> Collection[tuple[Member, ...]]:
        """Those so far, in the order of the entries."""
        return self._known.values()


def _description(entry: JobEntry, nodes: tuple[Member, ...]) -> Description:
    master = entry["master"]
    return Description(
        nodes,
        f"{master['addr']}:{master['port']}" if master else None,
        record_of(entry),
        entry["engine"],
        entry["release"],
        entry["created"],
        entry.get("command"),
    )


def record_of(entry: JobEntry) -> JobRecord:
    """The record in an entry. Jobs of an older mnt name no backend: theirs is ssh."""
    return JobRecord(entry["job"], entry.get("backend") or "ssh", entry.get("outside_id"))


_ALONE = (
    "no rank has joined a process group at the master's address: if this was a training, each rank has"
    " trained alone; does the script call init_process_group, and read RANK, LOCAL_RANK and WORLD_SIZE?"
)
_DISAGREES = "it disagrees with most hosts about the job"


class SeveralJobs(UsageError):
    """An abbreviation may mean several jobs."""


def may_be_a_job(text: str) -> bool:
    """Whether a text may be the id of a job, or an abbreviation of one (`named_job`)."""
    forms = (_BEGINNING, _LAST_PART)
    return len(text) >= ABBREVIATION and any(re.match(form, text) for form in forms)


def named_job(jobs: Sequence[Job], wanted: str | None) -> Job:
    """The job that `wanted` names; None: the newest. `jobs` is sorted, newest first.

    A job may be named by its id, by the beginning of its id (`20261127-1015`), or of its last part (`3fa`),
    with at least 3 characters.

    Raises:
        SeveralJobs: several jobs may be meant.
        UsageError: there is no such job, or no job at all.
    """
    if not jobs:
        raise UsageError("there are no jobs on the hosts", fix="mnt launch starts one")
    if wanted is None:
        return jobs[0]
    for job in jobs:
        if job.job == wanted:
            return job
    meant = [job for job in jobs if may_mean(wanted, job.job)]
    if len(meant) > 1:
        raise SeveralJobs(f"{wanted!r} may be any of {len(meant)} jobs", fix=f"name one: {_listed(meant)}")
    if meant:
        return meant[0]
    raise UsageError(f"there is no job {wanted!r} on the hosts", fix=f"name one of these: {_listed(jobs)}")


def jobs_to_stop(jobs: Sequence[Job], *, everything: bool) -> list[Job]:
    """The jobs that `mnt stop` must end if none is named: all that may still run, or the only one.

    Raises:
        UsageError: several jobs run.
    """
    running = [job for job in jobs if job.stoppable]
    if len(running) > 1 and not everything:
        raise UsageError(f"several jobs run: {_listed(running)}", fix="name one of them, or use --all")
    return running


def _listed(jobs: Sequence[Job], most: int = 8) -> str:
    more = f"; and {len(jobs) - most} older" if len(jobs) > most else ""
    return "; ".join(f"{job.job} ({job.state})" for job in jobs[:most]) + more


def host_of_rank(job: Job, rank: int) -> str:
    """The host of a global rank.

    Raises:
        UsageError: the job has no such rank, or its hosts disagree about where it is.
    """
    if job.layout is None:
        raise UsageError(
            f"the hosts of job {job.job} disagree about its nodes, so the host of rank {rank} is not known",
            fix="use --node HOST",
        )
    first = 0
    for member in job.layout:
        if first <= rank < first + member.nproc:
            return member.host
        first += member.nproc
    raise UsageError(f"job {job.job} has no rank {rank}", fix=f"use a rank from 0 to {first - 1}")
