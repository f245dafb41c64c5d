"""The first step of every start: put each node's spec and the supervisor on its host; and the way back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from mnt.errors import NeverStarted
from mnt.fleet import Fleet, Results
from mnt.launch.backends.api import Outside
from mnt.launch.slots import VISIBLE
from mnt.remote.job.channel import node_secret
from mnt.tasks.job import NodeSpec, Stopped, stage_node, stop_node

if TYPE_CHECKING:
    from mnt.launch.plan import LaunchPlan, NodePlan

T = TypeVar("T")

_FOR_THE_HEAD = 60.0  # seconds that the head may take to let a node join, beyond the start's time limit


def stage(fleet: Fleet, plan: LaunchPlan, outside: Outside | None = None) -> None:
    """Put every node's part of a plan on its host; nothing runs yet.

    This is the only place that reveals the job's secrets; `Draft.launch` has read them all.

    Raises NeverStarted: a node refused; the caller must call `take_back`.
    """
    values = {name: plan.secrets[name].reveal() for name in plan.secret_names}
    specs = node_specs(plan, outside, secret=secrets.token_hex(16), created=time.time())
    all_of(fleet.run_each(stage_node, {host: (spec, values) for host, spec in specs.items()}))


def take_back(fleet: Fleet, plan: LaunchPlan, hosts: Collection[str] | None = None) -> Results[Stopped]:
    """End everything that was staged or started for a plan, on all its hosts or only on `hosts`.

    Hosts that cannot be reached are left to `mnt stop`.
    """
    return fleet.run_each(
        partial(stop_node, grace=plan.grace),
        {
            node.host: (node.jobs_dir, plan.job, node.host)
            for node in plan.nodes
            if hosts is None or node.host in hosts
        },
    )


def all_of(results: Results[T]) -> dict[str, T]:
    """The answers of all hosts. Raises NeverStarted if a host did not answer."""
    errors = list(results.errors().values())
    if errors:
        raise NeverStarted.because(errors, "hosts failed", begin="the job did not start: ")
    return results.values_by_host()


def node_specs(
    plan: LaunchPlan, outside: Outside | None, *, secret: str, created: float
) -> dict[str, NodeSpec]:
    """By host, what its supervisor must run. Pure.

    Args:
        secret: with it, the nodes' supervisors authenticate to each other. Only node 0 gets it; another node
            gets what is derived from it for that node.
        created: epoch seconds.
    """
    return {
        node.host: {
            "format": 1,
            "job": plan.job,
            "host": node.host,
            "node_rank": node.node_rank,
            "nodes": [{"host": n.host, "node_rank": n.node_rank, "nproc": n.nproc} for n in plan.nodes],
            "engine": plan.engine,
            "release": plan.release,
            "command": plan.command,
            "backend": plan.record.backend,
            "outside_id": plan.record.outside_id,
            "starter": outside.name if outside else None,
            "passes": list(outside.passes) if outside else [],
            "programs": {**plan.programs, **_programs(outside, node.node_rank)},
            "join_within": plan.start_timeout + _FOR_THE_HEAD,
            "remains": plan.remains,
            "cwd": node.cwd,
            "argv": list(node.argv),
            "env": node.env,
            "secrets": plan.secret_names,
            "activate": list(node.activate),
            "ulimit": dict(node.ulimit),
            "elsewhere": node.elsewhere,
            "unset": list(node.unset),
            "container": dict(node.container) if node.container else None,
            "paths": list(node.paths),
            "python": list(node.python),
            "gpus": node.gpus,
            "devices": [] if outside and _gives_gpus(outside, node) else list(node.devices),
            "all_gpus": node.all_gpus,
            "share_gpus": plan.share_gpus,
            "subset": node.subset,
            "path_prepend": list(node.path_prepend),
            "python_path": list(node.python_path),
            "python_files": dict(plan.python_files),
            "workdir_group": node.workdir_group,
            "unread": plan.unread,
            "script": plan.script,
            "executable": plan.executable,
            "files": list(plan.files),
            "listens": plan.listens,
            "jobs_dir": node.jobs_dir,
            "master": {"addr": plan.master_addr, "port": plan.master_port},
            "grace": plan.grace,
            "peer": None,
            "secret": secret if node.node_rank == 0 else node_secret(secret, node.host),
            "created": created,
        }
        for node in plan.nodes
    }


def _gives_gpus(outside: Outside, node: NodePlan) -> bool:
    """Whether the starter says which GPUs a node has, as Slurm does: so they are not known before."""
    return VISIBLE in outside.passes and VISIBLE not in node.env


def _programs(outside: Outside | None, node_rank: int) -> dict[str, str]:
    if outside is None:
        return {}
    return {**outside.needs, **(outside.needs_first if node_rank == 0 else {})}
