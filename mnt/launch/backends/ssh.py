"""The SSH backend: one supervisor a node, the master's first."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial

from mnt.errors import HostError, NeverStarted
from mnt.fleet import Fleet, Results
from mnt.launch.plan import LaunchPlan, NodePlan
from mnt.tasks.job import Endpoint, NodeSpec, Started, Stopped, start_node, stop_node


def start(
    fleet: Fleet,
    plan: LaunchPlan,
    *,
    timeout: float,
    tell: Callable[[str], None],
) -> None:
    """Start every node of a plan: node 0, and the others at once when its rendezvous port LISTENs.

    Args:
        fleet: over the plan's hosts.
        timeout: seconds for node 0 to LISTEN (it imports torch first), and for each start.
        tell: takes progress, a line at a time.

    Raises:
        NeverStarted: a node could not be started; those that were have been stopped again.
    """
    secret = secrets.token_hex(16)  # the nodes' supervisors know each other by it
    created = time.time()
    try:
        master, *workers = plan.nodes
        tell(f"{master.host}: starting, rendezvous at {plan.master_addr}:{plan.master_port}")
        first = _start(fleet, [master], partial(_spec, plan, secret, created, None), timeout, wait=True)
        answer = first[master.host]
        if answer["node"]["state"] not in ("starting", "running"):
            return  # it has ended already: there is nothing to join, and its own entry says why
        if workers:
            if not answer["listening"]:
                where = f"{plan.master_addr}:{plan.master_port}"
                raise NeverStarted(
                    f"{master.host}: nothing listens on {where} after {timeout:g} s",
                    fix=f"mnt logs {plan.job}",
                )
            tell(f"{len(workers)} more: starting")
            _start(fleet, workers, partial(_spec, plan, secret, created, answer["peer"]), timeout, wait=False)
    except NeverStarted:
        take_back(fleet, plan)
        raise


def take_back(fleet: Fleet, plan: LaunchPlan) -> Results[Stopped]:
    """End whatever of a plan was started. Hosts that cannot be reached are left to `mnt stop`."""
    return fleet.run_each(
        partial(stop_node, grace=plan.grace),
        {node.host: (node.jobs_dir, plan.job, node.host) for node in plan.nodes},
    )


def _start(
    fleet: Fleet, nodes: list[NodePlan], spec: Callable[[NodePlan], NodeSpec], timeout: float, *, wait: bool
) -> dict[str, Started]:
    results = fleet.run_each(
        partial(start_node, wait_for_port=wait, timeout=timeout),
        {node.host: (spec(node),) for node in nodes},
    )
    errors = results.errors()
    if errors:
        raise _never_started(list(errors.values()))
    return results.values_by_host()


def _never_started(errors: list[HostError]) -> NeverStarted:
    return NeverStarted(
        "the job did not start: " + "; ".join(error.message for error in errors),
        fix=next((error.fix for error in errors if error.fix), None),
    )


def _spec(plan: LaunchPlan, secret: str, created: float, peer: Endpoint | None, node: NodePlan) -> NodeSpec:
    return {
        "format": 1,
        "job": plan.job,
        "host": node.host,
        "node_rank": node.node_rank,
        "nodes": [{"host": n.host, "node_rank": n.node_rank, "nproc": n.nproc} for n in plan.nodes],
        "engine": plan.engine,
        "release": plan.release,
        "cwd": node.cwd,
        "argv": list(node.argv),
        "env": node.env,
        "path_prepend": list(node.path_prepend),
        "script": plan.script,
        "ranks": [node.first_rank, node.nproc],
        "jobs_dir": node.jobs_dir,
        "master": {"addr": plan.master_addr, "port": plan.master_port},
        "grace": plan.grace,
        "peer": peer,
        "secret": secret,
        "created": created,
    }
