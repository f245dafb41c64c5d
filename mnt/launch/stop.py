"""Ending jobs everywhere, and saying what became of each node."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnt.fleet import Fleet, Outcome
    from mnt.launch.jobs import Job
    from mnt.tasks.job import Stopped


def stop_jobs(fleet: Fleet, jobs: Sequence[Job], *, grace: float) -> dict[str, Any]:
    """Stop jobs one after the other, all nodes of each at once. Returns what `mnt stop --json` prints.

    Args:
        fleet: over the inventory's hosts; a node of a job whose host is not among them counts as unreachable.
        grace: seconds between TERM and KILL.
    """
    from mnt.tasks.job import stop_node

    ok = True
    known = {host.name for host in fleet.hosts}
    documents: list[dict[str, Any]] = []
    for job in jobs:
        targets = {
            node.host: (fleet.host(node.host).jobs_dir, job.job, node.host)
            for node in job.nodes
            if node.host in known
        }
        outcomes = fleet.run_each(partial(stop_node, grace=grace), targets)
        hosts = {node.host: stop_document(outcomes.get(node.host)) for node in job.nodes}
        documents.append({"job": job.job, "hosts": hosts})
        ok = ok and all(host["status"] == "stopped" for host in hosts.values())
    return {"ok": ok, "jobs": documents}


def stop_document(outcome: Outcome[Stopped] | None) -> dict[str, Any]:
    """One node's line of the document; None for a host that is not in the inventory."""
    if outcome is None or outcome.value is None:
        error = outcome.error if outcome else None
        message = error.message if error else "not among the selected hosts"
        return {"status": "unreachable", "killed": 0, "left": [], "port_free": None, "message": message}
    answer = outcome.value
    # A node on which nothing of the job ran (any more) is as stopped as can be.
    status = "left" if answer["status"] == "left" else "stopped"
    return {
        "status": status,
        "killed": answer["killed"],
        "left": answer["left"],
        "port_free": answer["port_free"],
    }


def describe(host: str, document: dict[str, Any]) -> str:
    """One line for a person."""
    if document["status"] == "unreachable":
        return f"{host}: not stopped: {document['message']}"
    port = "master port free" if document["port_free"] else "master port still taken"
    ended = f"{document['killed']} process{'es' * (document['killed'] != 1)} ended"
    if document["status"] == "left":
        pids = ", ".join(map(str, document["left"]))
        return f"{host}: not stopped: processes {pids} are still there; {port}"
    return f"{host}: stopped, {ended}; {port}"
