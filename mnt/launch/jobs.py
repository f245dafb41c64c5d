"""A job as the head sees it: the nodes' own entries, merged into one state, one culprit, one exit code. Pure.

Each node judges only itself (`mnt.tasks.job.JobEntry`). Which of several failures came first, and which were
only its victims, shows when they lie side by side, their times corrected by each host's clock offset.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mnt.errors import UsageError

if TYPE_CHECKING:
    from mnt.remote.job.failures import Failure
    from mnt.tasks.job import JobEntry, Jobs

ACTIVE = frozenset({"starting", "running"})


def new_job_id() -> str:
    """An id that sorts by time and collides with nobody: `20261127-224500-3fa90c`."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(3)


@dataclass(frozen=True)
class JobRecord:
    """A job as its backend knows it."""

    job: str
    backend: str = "ssh"  # what started it
    outside_id: str | None = None  # what it is called there (a Slurm job's id); None: nothing

    def document(self) -> dict[str, Any]:
        return {"job": self.job, "backend": self.backend, "outside_id": self.outside_id}


@dataclass(frozen=True)
class Culprit:
    """Where and why a job failed. `rank` is global; None: the host itself, not one of its processes."""

    host: str
    rank: int | None
    exit_code: int | None
    message: str
    traceback: str | None = None

    def document(self) -> dict[str, Any]:
        return {"host": self.host, "rank": self.rank, "exit_code": self.exit_code, "message": self.message}

    def sentence(self) -> str:
        """One line for a person."""
        where = self.host if self.rank is None else f"{self.host}, rank {self.rank}"
        code = "" if self.exit_code is None else f" (exit code {self.exit_code})"
        return f"{where}: {self.message}{code}"


@dataclass(frozen=True)
class Node:
    """One node of a job.

    Its state is the entry's; or `unreachable`, `absent` (never started there), `unknown` (not asked).
    """

    host: str
    node_rank: int
    state: str
    entry: JobEntry | None = None
    clock_offset: float = 0.0  # seconds; the host's clock minus the head's

    @property
    def exit_code(self) -> int | None:
        return None if self.entry is None else self.entry["exit_code"]


@dataclass(frozen=True)
class Job:
    record: JobRecord
    engine: str | None
    release: str | None
    created: float  # epoch seconds
    master: str | None  # host:port of the rendezvous, by its training address
    nodes: tuple[Node, ...]  # in rank order

    @property
    def job(self) -> str:
        return self.record.job

    @property
    def active(self) -> bool:
        """Whether any node still runs."""
        return any(node.state in ACTIVE for node in self.nodes)

    @property
    def stoppable(self) -> bool:
        """Whether anything of it may still be there: it runs, is staged, or a supervisor of it died."""
        return self.active or any(node.state in ("pending", "lost") for node in self.nodes)

    @property
    def state(self) -> str:
        """pending (no node has started yet), starting, running, finished, failed, stopped or lost."""
        states = {node.state for node in self.nodes} - {"unknown"}
        if any(_heard_by(node) for node in self.nodes):
            states.add("failed")  # there, whether the node that failed can be asked or not
        for state in ("starting", "running", "failed", "lost", "stopped"):
            if state in states:
                return state
        if "pending" in states and states <= {"pending", "absent"}:
            return "pending"
        return "finished" if states == {"finished"} else "lost"

    @property
    def culprit(self) -> Culprit | None:
        """Whoever failed first, where the job failed or was lost."""
        return find_culprit(self.nodes) if self.state in ("failed", "lost") else None

    @property
    def exit_code(self) -> int | None:
        """What `mnt launch` exits with; None while the job runs, or waits to.

        The culprit's own code; 1 where nobody saw it; 143, as after a TERM, for a job that was stopped.
        """
        if self.active or self.state == "pending":
            return None
        if self.state == "finished":
            return 0
        if self.state == "stopped":
            return 143
        culprit = self.culprit
        return (culprit.exit_code if culprit else None) or 1

    def document(self) -> dict[str, Any]:
        """The job as `mnt status --json` prints it."""
        culprit = self.culprit
        return {
            **self.record.document(),
            "state": self.state,
            "engine": self.engine,
            "release": self.release,
            "created": self.created,
            "nodes": [
                {
                    "host": node.host,
                    "node_rank": node.node_rank,
                    "state": node.state,
                    "exit_code": node.exit_code,
                }
                for node in self.nodes
            ],
            "culprit": culprit.document() if culprit else None,
        }


def merge_jobs(answers: Mapping[str, tuple[Jobs, float]], unreachable: Iterable[str] = ()) -> list[Job]:
    """All jobs that the hosts know of, newest first.

    Args:
        answers: by host, what `list_jobs` answered and the host's clock offset in seconds.
        unreachable: hosts that could not be asked.
    """
    entries: dict[str, dict[str, tuple[JobEntry, float]]] = {}
    for jobs, offset in answers.values():
        for entry in jobs["jobs"]:
            entries.setdefault(entry["job"], {})[entry["host"]] = (entry, offset)
    away = set(unreachable)
    merged = [
        merge_job(by_host, unreachable=away, asked=away | answers.keys()) for by_host in entries.values()
    ]
    return sorted(merged, key=lambda job: (job.created, job.job), reverse=True)


def merge_job(
    entries: Mapping[str, tuple[JobEntry, float]], *, unreachable: Collection[str], asked: Collection[str]
) -> Job:
    """One job out of its nodes' entries (each with its host's clock offset); at least one entry is needed.

    What the hosts that were not `asked` hold says nothing about its state.
    """
    any_entry = next(iter(entries.values()))[0]
    nodes = []
    for member in any_entry["nodes"]:
        host = member["host"]
        entry, offset = entries.get(host, (None, 0.0))
        missing = "unreachable" if host in unreachable else "absent" if host in asked else "unknown"
        state = entry["state"] if entry else missing
        nodes.append(Node(host, member["node_rank"], state, entry, offset))
    master = any_entry["master"]
    return Job(
        record=record_of(any_entry),
        engine=any_entry["engine"],
        release=any_entry["release"],
        created=any_entry["created"] or 0.0,
        master=f"{master['addr']}:{master['port']}" if master else None,
        nodes=tuple(nodes),
    )


def record_of(entry: JobEntry) -> JobRecord:
    """An older mnt's jobs say nothing of a backend: they are ssh's."""
    return JobRecord(entry["job"], entry.get("backend") or "ssh", entry.get("outside_id"))


def find_culprit(nodes: Sequence[Node]) -> Culprit | None:
    """The first failure that is not another's victim; else a lost host; else the first victim."""
    failures = sorted(_failures(nodes), key=lambda found: found[0])
    for _, host, failure in failures:
        if not failure["victim"]:
            return _culprit(host, failure)
    for node in nodes:
        lost = _lost_by(node)
        if lost is not None:
            return Culprit(lost, None, None, f"{node.host} lost contact with it")
    for node in nodes:
        if node.state in ("lost", "unreachable"):
            why = "its supervisor was killed" if node.state == "lost" else "it cannot be reached"
            return Culprit(node.host, None, None, why)
    for _, host, failure in failures:
        return _culprit(host, failure)
    return None


def _lost_by(node: Node) -> str | None:
    """The host that a node lost contact with, where that is what ended it."""
    reason = (node.entry["reason"] if node.entry else None) or {}
    return reason.get("lost")


def _failures(nodes: Sequence[Node]) -> Iterable[tuple[float, str, Failure]]:
    """(time by the head's clock, host, failure) of each node, and of nodes that only a peer can speak for.

    What a node says of itself is fuller than what it told its peers: it has the traceback.
    """
    speak = set()
    for node in nodes:
        if node.entry is not None and node.entry["failure"] is not None and _lost_by(node) is None:
            speak.add(node.host)
            failure = node.entry["failure"]
            yield (failure["time"] or node.entry["ended"] or 0.0) - node.clock_offset, node.host, failure
    for node in nodes:
        heard = _heard_by(node)
        if heard is not None and heard[0] not in speak:
            host, failure = heard
            yield (failure["time"] or 0.0) - node.clock_offset, host, failure


def _heard_by(node: Node) -> tuple[str, Failure] | None:
    """Which host's failure, and what it was, a node was ended for."""
    reason = (node.entry["reason"] if node.entry else None) or {}
    return (reason["peer"], reason["failure"]) if reason.get("failure") else None


def _culprit(host: str, failure: Failure) -> Culprit:
    return Culprit(host, failure["rank"], failure["exit_code"], failure["message"], failure["traceback"])


def named_job(jobs: Sequence[Job], wanted: str | None) -> Job:
    """The job of that id; without one, the newest. `jobs` is newest first.

    Raises:
        UsageError: no such job, or none at all.
    """
    if not jobs:
        raise UsageError("the hosts hold no job", fix="mnt launch starts one")
    if wanted is None:
        return jobs[0]
    for job in jobs:
        if job.job == wanted:
            return job
    raise UsageError(f"there is no job {wanted!r}", fix=f"the jobs there are: {_listed(jobs)}")


def jobs_to_stop(jobs: Sequence[Job], wanted: str | None, *, everything: bool) -> list[Job]:
    """What `mnt stop` is to end: the named job, all that may still run, or the only one.

    Raises:
        UsageError: no such job, or several run and none is named.
    """
    if wanted is not None:
        return [named_job(jobs, wanted)]
    running = [job for job in jobs if job.stoppable]
    if len(running) > 1 and not everything:
        raise UsageError(f"several jobs run: {_listed(running)}", fix="name one of them, or use --all")
    return running


def _listed(jobs: Sequence[Job], most: int = 8) -> str:
    more = f"; and {len(jobs) - most} older" if len(jobs) > most else ""
    return "; ".join(f"{job.job} ({job.state})" for job in jobs[:most]) + more


def host_of_rank(job: Job, rank: int) -> str:
    """The host that runs a global rank.

    Raises:
        UsageError: the job has no such rank.
    """
    members = next(node.entry["nodes"] for node in job.nodes if node.entry is not None)
    first = 0
    for member in members:
        if first <= rank < first + member["nproc"]:
            return member["host"]
        first += member["nproc"]
    raise UsageError(f"job {job.job} has no rank {rank}", fix=f"its ranks are 0 to {first - 1}")
