"""Stop jobs on all their nodes, and report the result for each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mnt.errors import HostError, NeverStarted
from mnt.fleet import Outcome
from mnt.launch.backends import backend_named
from mnt.launch.backends.api import cancel_pending
from mnt.tasks.job import stop_nodes

if TYPE_CHECKING:
    from mnt.fleet import Fleet
    from mnt.inventory.model import Host
    from mnt.launch.jobs import Job
    from mnt.launch.status import JobHosts
    from mnt.tasks.job import Stopped

# Of a node in such a state it is not known whether it ran.
_UNCLEAR = ("lost", "absent", "unknown", "unreachable")


OfHosts = Mapping[str, "Outcome[Stopped]"]


@dataclass(frozen=True)
class StoppedJob:
    """The results of one job by host, each as in the document of `mnt stop --json`."""

    job: str
    backend: str
    hosts: dict[str, dict[str, Any]]

    @property
    def ok(self) -> bool:
        return all(host["status"] == "stopped" for host in self.hosts.values())


@dataclass(frozen=True)
class StopResult:
    jobs: tuple[StoppedJob, ...] = ()
    disputed: bool = False  # the hosts disagree about one of the jobs

    @property
    def ok(self) -> bool:
        """Whether every host has verified that nothing of the jobs is left."""
        return not self.disputed and all(job.ok for job in self.jobs)

    def document(self) -> dict[str, Any]:
        """The document of `mnt stop --json`."""
        jobs = [{"job": job.job, "backend": job.backend, "hosts": job.hosts} for job in self.jobs]
        return {"ok": self.ok, "jobs": jobs}


def stop_jobs(hosts: JobHosts, jobs: Sequence[Job], *, grace: float) -> StopResult:
    """Stop jobs, all at once.

    Every host is asked to stop every job of its backend: a node may have a part of a job though no entry
    names it. A host that is not named is in the result if something of the job was there, or if it could
    not be asked.

    Args:
        hosts: if a job has a node on another host, this node counts as unreachable.
        grace: seconds between TERM and KILL.
    """
    by_backend: dict[str, list[Job]] = {}
    for job in jobs:
        withdraw(job, hosts.hosts)
        by_backend.setdefault(job.record.backend, []).append(job)
    outcomes: dict[str, OfHosts] = {}
    for some in by_backend.values():
        outcomes |= _stop_everywhere(hosts, hosts.fleet_of(some[0]), [job.job for job in some], grace)
    stopped = tuple(_of_job(job, outcomes[job.job]) for job in jobs)
    return StopResult(stopped, any(job.disagreeing for job in jobs))


def withdraw(job: Job, hosts: Sequence[Host]) -> None:
    """Withdraw a job of which no node has started from its backend's queue; a host may know that.

    If the queue does not answer, nothing of the job will be found by what starts there, and that ends.
    """
    if job.state != "pending":
        return
    with suppress(NeverStarted), closing(backend_named(job.record.backend)) as backend:
        cancel_pending(backend, job.record, hosts)


def stop_named(hosts: JobHosts, job: str, *, grace: float) -> dict[str, OfHosts]:
    """Stop one job by its name, before it is known which hosts have it: no host waits for another one.

    Args:
        grace: seconds between TERM and KILL.

    Returns the outcomes on all hosts, by backend.
    """
    return {backend: _stop_everywhere(hosts, fleet, [job], grace)[job] for backend, fleet in hosts.fleets()}


def result_of_named(job: str, outcomes: Mapping[str, OfHosts], jobs: Sequence[Job]) -> StopResult | None:
    """The result of `stop_named`; None: no host lists the job, nor did it run on one that answered.

    If no host lists it, because someone has deleted its directory, the hosts are those on which it ran, or
    that could not be asked.

    Args:
        outcomes: by backend.
        jobs: those that the hosts list.
    """
    listed = next((each for each in jobs if each.job == job), None)
    here = listed is not None and backend_named(listed.record.backend).here
    stopped: list[StoppedJob] = []
    for backend, of_hosts in outcomes.items():
        if listed is not None and backend_named(backend).here == here:
            stopped.insert(0, _of_job(listed, of_hosts))
        elif any(outcome.value and outcome.value["status"] != "none" for outcome in of_hosts.values()):
            told = {host: stop_document(outcome) for host, outcome in of_hosts.items() if _tells(outcome)}
            stopped.append(StoppedJob(job, backend, told))
    if not stopped:
        return None
    return StopResult(tuple(stopped), bool(listed and listed.disagreeing))


def _stop_everywhere(
    hosts: JobHosts, fleet: Fleet, jobs: Sequence[str], grace: float
) -> Mapping[str, OfHosts]:
    """Stop the jobs on all hosts of the fleet, with one trip to each. The outcomes, by job and host."""
    found: dict[str, dict[str, Outcome[Stopped]]] = {job: {} for job in jobs}
    stop = partial(stop_nodes, grace=grace)
    for host, outcome in hosts.ask(fleet, stop, lambda host: (host.jobs_dir, jobs, host.name)).items():
        for job in jobs:
            found[job][host] = _of_one(outcome, job)
    return found


def _of_one(outcome: Outcome[dict[str, Stopped | HostError]], job: str) -> Outcome[Stopped]:
    answer = outcome.error if outcome.value is None else outcome.value[job]
    if answer is None or isinstance(answer, HostError):
        return Outcome(outcome.host, None, answer, outcome.seconds)
    return Outcome(outcome.host, answer, None, outcome.seconds)


def _of_job(job: Job, outcomes: OfHosts) -> StoppedJob:
    """The results on the job's nodes, in rank order, and on the other hosts that have something to tell."""
    found: dict[str, dict[str, Any]] = {}
    for node in job.nodes:
        outcome = outcomes.get(node.host)
        found[node.host] = stop_document(outcome)
        if node.state in _UNCLEAR and outcome and outcome.value and outcome.value["status"] == "none":
            found[node.host]["message"] = "nothing of the job was found here"
    others = {host: each for host, each in outcomes.items() if host not in found and _tells(each)}
    found |= {host: stop_document(outcome) for host, outcome in others.items()}
    return StoppedJob(job.job, job.record.backend, found)


def _tells(outcome: Outcome[Stopped]) -> bool:
    """Whether the job was on the host, or the host could not be asked."""
    return outcome.value is None or outcome.value["status"] != "none"


def stop_document(outcome: Outcome[Stopped] | None) -> dict[str, Any]:
    """The result on one node, as in the document. `outcome` is None if the host was not selected."""
    if outcome is None or outcome.value is None:
        error = outcome.error if outcome else None
        message = error.message if error else "not among the selected hosts"
        return {"status": "unreachable", "killed": 0, "left": [], "port_free": None, "message": message}
    answer = outcome.value
    # "none": nothing of the job ran (any more), so it is stopped too.
    status = "left" if answer["status"] == "left" else "stopped"
    return {
        "status": status,
        "killed": answer["killed"],
        "left": answer["left"],
        "port_free": answer["port_free"],
    }
