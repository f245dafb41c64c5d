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
    documents: dict[str, dict[str, Any]] = {}
    for backend, some in by_backend.items():
        outcomes = _stop_everywhere(hosts.fleet_of(some[0]), [job.job for job in some], grace)
        for job in some:
            documents[job.job] = {
                "job": job.job,
                "backend": backend,
                "hosts": _of_hosts(job, outcomes[job.job]),
            }
    document = _document([documents[job.job] for job in jobs])
    return {**document, "ok": document["ok"] and not any(job.disagreeing for job in jobs)}


def stop_unlisted(hosts: JobHosts, job: str, *, grace: float) -> dict[str, Any] | None:
    """Stop a job that no host lists, because someone has deleted its directory: ask every host to stop it.

    Returns the document of `mnt stop --json`, with the hosts on which it ran, and those that could not be
    asked. None: it ran on no host that answered.
    """
    for backend, fleet in hosts.fleets():
        outcomes = _stop_everywhere(fleet, [job], grace)[job]
        if any(outcome.value and outcome.value["status"] != "none" for outcome in outcomes.values()):
            found = {host: stop_document(outcome) for host, outcome in outcomes.items() if _tells(outcome)}
            return _document([{"job": job, "backend": backend, "hosts": found}])
    return None


def _stop_everywhere(
    fleet: Fleet, jobs: Sequence[str], grace: float
) -> dict[str, dict[str, Outcome[Stopped]]]:
    """Stop the jobs on all hosts of the fleet, with one trip to each. The outcomes, by job and host."""
    targets = {host.name: (host.jobs_dir, jobs, host.name) for host in fleet.hosts}
    found: dict[str, dict[str, Outcome[Stopped]]] = {job: {} for job in jobs}
    for host, outcome in fleet.run_each(partial(stop_nodes, grace=grace), targets).items():
        for job in jobs:
            found[job][host] = _of_one(outcome, job)
    return found


def _of_one(outcome: Outcome[dict[str, Stopped | HostError]], job: str) -> Outcome[Stopped]:
    answer = outcome.error if outcome.value is None else outcome.value[job]
    if answer is None or isinstance(answer, HostError):
        return Outcome(outcome.host, None, answer, outcome.seconds)
    return Outcome(outcome.host, answer, None, outcome.seconds)


def _of_hosts(job: Job, outcomes: Mapping[str, Outcome[Stopped]]) -> dict[str, dict[str, Any]]:
    """The results on the job's nodes, in rank order, and on the other hosts that have something to tell."""
    found = {}
    for node in job.nodes:
        outcome = outcomes.get(node.host)
        found[node.host] = stop_document(outcome)
        if node.state in _UNCLEAR and outcome and outcome.value and outcome.value["status"] == "none":
            found[node.host]["message"] = "nothing of the job was found here"
    others = {host: each for host, each in outcomes.items() if host not in found and _tells(each)}
    return found | {host: stop_document(outcome) for host, outcome in others.items()}


def _tells(outcome: Outcome[Stopped]) -> bool:
    """Whether the job was on the host, or the host could not be asked."""
    return outcome.value is None or outcome.value["status"] != "none"


def _document(jobs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    ok = all(host["status"] == "stopped" for job in jobs for host in job["hosts"].values())
    return {"ok": ok, "jobs": jobs}


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
