"""Stop jobs on all their nodes, and report the result for each node."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mnt.launch.backends import backend_named
from mnt.launch.backends.api import cancel_pending
from mnt.tasks.job import stop_node

if TYPE_CHECKING:
    from mnt.fleet import Fleet, Outcome, Results
    from mnt.launch.jobs import Job
    from mnt.launch.status import JobHosts
    from mnt.tasks.job import Stopped


def stop_jobs(hosts: JobHosts, jobs: Sequence[Job], *, grace: float) -> dict[str, Any]:
    """Stop jobs one after another, each on all nodes at once. Returns the document of `mnt stop --json`.

    Args:
        hosts: if a job has a node on another host, this node counts as unreachable.
        grace: seconds between TERM and KILL.
    """
    documents: list[dict[str, Any]] = []
    for job in jobs:
        cancel_pending(backend_named(job.record.backend), job.record)
        outcomes = _stop_nodes(hosts.fleet_of(job), job.job, {node.host for node in job.nodes}, grace)
        stopped = {node.host: stop_document(outcomes.get(node.host)) for node in job.nodes}
        documents.append({"job": job.job, "backend": job.record.backend, "hosts": stopped})
    return _document(documents)


def stop_unlisted(hosts: JobHosts, job: str, *, grace: float) -> dict[str, Any] | None:
    """Stop a job that no host lists, because someone has deleted its directory: ask every host to stop it.

    Returns the document of `mnt stop --json`, with the hosts on which it ran, and those that could not be
    asked. None: it ran on no host that answered.
    """
    for backend, fleet in hosts.fleets():
        outcomes = _stop_nodes(fleet, job, {host.name for host in fleet.hosts}, grace)
        if any(answer["status"] != "none" for answer in outcomes.values_by_host().values()):
            found = {
                host: stop_document(outcome)
                for host, outcome in outcomes.items()
                if outcome.value is None or outcome.value["status"] != "none"
            }
            return _document([{"job": job, "backend": backend, "hosts": found}])
    return None


def _stop_nodes(fleet: Fleet, job: str, names: Container[str], grace: float) -> Results[Stopped]:
    """Stop the job's part on each host of the fleet that is in `names`, on all of them at once."""
    targets = {host.name: (host.jobs_dir, job, host.name) for host in fleet.hosts if host.name in names}
    return fleet.run_each(partial(stop_node, grace=grace), targets)


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
