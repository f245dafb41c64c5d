"""The start of a planned job, for all backends: stage every node, start node 0, then all others at once.

The others import torch while node 0 does, and connect as soon as its port answers: they wait, not the head.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mnt.errors import NeverStarted
from mnt.fleet import Fleet
from mnt.inventory.hostlist import fold
from mnt.launch.backends.api import Outside, Tell
from mnt.launch.jobs import ACTIVE
from mnt.launch.staging import all_of, stage, take_back
from mnt.tasks.job import await_port, held_start, join_node, spawn_node

if TYPE_CHECKING:
    from mnt.launch.plan import LaunchPlan
    from mnt.tasks.job import JobEntry


def start_job(fleet: Fleet, plan: LaunchPlan, tell: Tell, outside: Outside | None = None) -> None:
    """Start a job, or leave nothing of it.

    Args:
        outside: the program that starts the supervisors; None: we do, over SSH.

    Raises NeverStarted: a node could not be started; the other nodes have been stopped again.
    """
    try:
        stage(fleet, plan, outside)
        master = plan.nodes[0]
        at_master = fleet.connection(master.host)
        with held_start(at_master, master.jobs_dir, plan.job, master.host, grace=plan.grace):
            _start_nodes(fleet, plan, tell, outside)
    except Exception:  # of `tell`, too
        take_back(fleet, plan)
        raise


def _start_nodes(fleet: Fleet, plan: LaunchPlan, tell: Tell, outside: Outside | None) -> None:
    first = other = spawn_node
    by = ""
    if outside is not None:
        by = f" by {outside.name}"
        other = partial(join_node, timeout=plan.start_timeout)
        first = partial(other, argv=outside.argv, to_its_end=outside.ends)
    staged = {node.host: (node.jobs_dir, plan.job, node.host) for node in plan.nodes}
    master = plan.master_host
    at_master = {master: staged.pop(master)}
    where = f"{plan.master_addr}:{plan.master_port}"
    tell(f"{master}: starting{by}, {'rendezvous at' if plan.listens else 'MASTER_ADDR:MASTER_PORT'} {where}")
    peer = all_of(fleet.run_each(first, at_master))[master]["peer"]
    if staged:
        then = f", to connect as soon as {master} listens" if plan.listens else ""
        tell(f"{fold([*staged])}: starting{by}{then}")
        if peer is not None:  # node 0 chooses the port, but not the address to which the others connect
            peer = {"addr": plan.master_addr, "port": peer["port"]}
        all_of(fleet.run_each(partial(other, peer=peer), staged))
    if not plan.listens:
        return
    found = all_of(fleet.run_each(partial(await_port, timeout=plan.start_timeout), at_master))[master]
    if found["node"]["state"] not in ACTIVE:
        _require_ranks(found["node"], master, plan.job)  # it has ended already, and its own entry shows why
    elif staged and not found["listening"]:
        raise NeverStarted(
            f"{master}: nothing listens on {where} after {plan.start_timeout:g} s",
            fix=f"mnt logs {plan.job}",
            host=master,
        )


def _require_ranks(entry: JobEntry, master: str, job: str) -> None:
    """Raises NeverStarted if the master's part has failed before any rank, as with a port that is taken."""
    failure = entry["failure"]
    if entry["state"] == "failed" and not entry["listening"] and failure and failure["rank"] is None:
        message = f"the job did not start: {master}: {failure['message']}"
        raise NeverStarted(message, fix=f"mnt logs {job}", host=master)
