"""Stop jobs on all their nodes, and report the result for each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mnt.errors import HostError
from mnt.fleet import Outcome
from mnt.launch.backends import backend_named
from mnt.launch.backends.api import cancel_pending
from mnt.tasks.job import stop_nodes

if TYPE_CHECKING:
    from mnt.fleet import Fleet
    from mnt.launch.jobs import Job
    from mnt.launch.status import JobHosts
    from mnt.tasks.job import Stopped

# Of a node in such a state it is not known whether it ran.
_UNCLEAR = ("lost", "absent", "unknown", "unreachable")


def stop_jobs(hosts: JobHosts, jobs: Sequence[Job], *, grace: float) -> dict[str, Any]:
    """Stop jobs, all at once. Returns the document of `mnt stop --json`.

    Every host is asked to stop every job of its backend: a node may have a part of a job though no entry
    names it. A host that is not named is in the document if something of the job was there, or if it could
    not be asked.

    Args:
        hosts: if a job has a node on another host, this node counts as unreachable.
        grace: seconds between TERM and KILL.
    """
    by_backend: dict[str, list[Job]] = {}
    for job in jobs:
        cancel_pending(backend_named(job.record.backend), job.record)
        by_backend.setdefault(job.record.backend, []).append(job)
    outcomes: dict[str, dict[str, Outcome[Stopped]]] = {}
    for some in by_backend.values():
        outcomes |= _stop_everywhere(hosts, hosts.fleet_of(some[0]), [job.job for job in some], grace)
    return _document([_of_job(job, outcomes[job.job]) for job in jobs], jobs)


class NamedStop:
    """The stop of one job by its name, before it is known which hosts have it: no host waits for another one.

    Args:
        grace: seconds between TERM and KILL.
    """

    def __init__(self, hosts: JobHosts, job: str, *, grace: float) -> None:
        self._job = job
        self._outcomes = {
            backend: _stop_everywhere(hosts, fleet, [job], grace)[job] for backend, fleet in hosts.fleets()
        }

    def document(self, jobs: Sequence[Job]) -> dict[str, Any] | None:
        """The document of `mnt stop --json`.

        None: no host lists the job, nor did it run on one that answered. If no host lists it, because someone
        has deleted its directory, the hosts are those on which it ran, or that could not be asked.

        Args:
            jobs: those that the hosts list.
        """
        for job in jobs:
            if job.job == self._job:
                here = backend_named(job.record.backend).here
                cancel_pending(backend_named(job.record.backend), job.record)
                outcomes = next(
                    each for name, each in self._outcomes.items() if backend_named(name).here == here
                )
                found = [_of_job(job, outcomes)]
                found += [
                    self._of_backend(name)
                    for name in self._outcomes
                    if backend_named(name).here != here and self._ran(name)
                ]
                return _document(found, [job])
        ran = [self._of_backend(name) for name in self._outcomes if self._ran(name)]
        return _document(ran) if ran else None

    def _ran(self, backend: str) -> bool:
        """Whether something of the job was on a host of the backend."""
        outcomes = self._outcomes[backend].values()
        return any(outcome.value and outcome.value["status"] != "none" for outcome in outcomes)

    def _of_backend(self, backend: str) -> dict[str, Any]:
        outcomes = self._outcomes[backend]
        found = {host: stop_document(outcome) for host, outcome in outcomes.items() if _tells(outcome)}
        return {"job": self._job, "backend": backend, "hosts": found}


def _stop_everywhere(
    hosts: JobHosts, fleet: Fleet, jobs: Sequence[str], grace: float
) -> dict[str, dict[str, Outcome[Stopped]]]:
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


def _of_job(job: Job, outcomes: Mapping[str, Outcome[Stopped]]) -> dict[str, Any]:
    """The results on the job's nodes, in rank order, and on the other hosts that have something to tell."""
    found: dict[str, dict[str, Any]] = {}
    for node in job.nodes:
        outcome = outcomes.get(node.host)
        found[node.host] = stop_document(outcome)
        if node.state in _UNCLEAR and outcome and outcome.value and outcome.value["status"] == "none":
            found[node.host]["message"] = "nothing of the job was found here"
    others = {host: each for host, each in outcomes.items() if host not in found and _tells(each)}
    found |= {host: stop_document(outcome) for host, outcome in others.items()}
    return {"job": job.job, "backend": job.record.backend, "hosts": found}


def _tells(outcome: Outcome[Stopped]) -> bool:
    """Whether the job was on the host, or the host could not be asked."""
    return outcome.value is None or outcome.value["status"] != "none"


def _document(stopped: Sequence[dict[str, Any]], jobs: Sequence[Job] = ()) -> dict[str, Any]:
    """The whole document; it is no success if hosts disagree about one of the listed `jobs`."""
    ok = all(host["status"] == "stopped" for job in stopped for host in job["hosts"].values())
    return {"ok": ok and not any(job.disagreeing for job in jobs), "jobs": stopped}


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
