"""What is said to Slurm, and what its commands print (Slurm 22.05): pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mnt.errors import NeverStarted
from mnt.inventory.hostlist import fold
from mnt.inventory.model import Host
from mnt.launch.backends.api import Request, start_line
from mnt.remote.scheduler.slurm import fields

STAGED_WITHIN = 300  # seconds that an allocation waits for what is to run there
NODES = ("sinfo", "-h", "-N", "-o", "%N|%o|%n|%R|%T")  # name, address, host name, partition, state

# Reasons for which a job stays pending for ever, unless somebody changes it or Slurm (`squeue(1)`).
_HOPELESS = frozenset(
    {
        "AccountNotAllowed",
        "BadConstraints",
        "InvalidAccount",
        "InvalidQOS",
        "JobHeldAdmin",
        "PartitionConfig",
        "PartitionInactive",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "QOSNotAllowed",
        "ReqNodeNotAvail(Unavailable)",
    }
)


_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED", "RESV_DEL_HOLD"})


@dataclass(frozen=True)
class SlurmJob:
    """A job as Slurm shows it."""

    state: str  # PENDING, RUNNING, COMPLETED, TIMEOUT, ..
    reason: str | None
    nodes: str | None  # a list as Slurm writes it
    comment: str | None = None

    @property
    def waits(self) -> bool:
        return self.state in _WAITING

    @property
    def hopeless(self) -> bool:
        return self.state == "PENDING" and (self.reason or "").split(",")[0] in _HOPELESS


def read_job(text: str) -> SlurmJob | None:
    """The answer of `scontrol show job ID`; None: it is none."""
    words = fields(text)
    if "JobState" not in words:
        return None
    reason, nodes = words.get("Reason", "None"), words.get("NodeList", "(null)")
    return SlurmJob(
        words["JobState"],
        None if reason == "None" else reason,
        None if nodes in ("(null)", "") else nodes,
        words.get("Comment"),
    )


def read_nodes(text: str) -> dict[str, tuple[str, ...]]:
    """By Slurm's name of a node, the names and addresses that it has: the answer of NODES."""
    found: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        name, *others = line.split("|")
        found[name] = (name, *others[:2])
    return found


def read_partition(text: str, partition: str) -> int:
    """The number of nodes in a partition: from the answer of NODES."""
    rows = (line.split("|") for line in text.splitlines())
    return len({row[0] for row in rows if len(row) > 3 and row[3] == partition})


def read_partitions(text: str) -> list[str]:
    """The names of all partitions: from the answer of NODES."""
    rows = (line.split("|") for line in text.splitlines())
    return sorted({row[3] for row in rows if len(row) > 3})


def names_in_slurm(hosts: Sequence[Host], nodes: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """By host, its name in Slurm: the same name, or a node with its name or address.

    Raises NeverStarted, naming the hosts that are no nodes of this Slurm.
    """
    known = {alias: name for name, aliases in nodes.items() for alias in aliases}
    known |= {name: name for name in nodes}
    found = {host.name: known.get(host.name) or known.get(host.address) for host in hosts}
    missing = [name for name, node in found.items() if node is None]
    if missing:
        raise NeverStarted(
            f"{fold(missing)}: no node of this Slurm has this name or address",
            fix=f"use other hosts, or --via ssh; Slurm has {fold([*nodes])}",
        )
    return {name: node for name, node in found.items() if node is not None}


def submit_argv(
    request: Request, hosts: Mapping[str, str], nodes: Sequence[str], jobs: int = 1
) -> tuple[str, ...]:
    """The sbatch that asks for `count` of the hosts, or for all of them. Its script is `batch_script`.

    Args:
        hosts: by host, its name in Slurm.
        nodes: all nodes of Slurm.
    """
    names = [*hosts.values()]
    others = [node for node in nodes if node not in names]
    chosen = request.count is not None and request.count < len(names)
    return (
        "sbatch",
        "--parsable",
        f"--job-name={request.job}",
        f"--nodes={request.count if chosen else len(names)}",
        "--ntasks-per-node=1",
        *([f"--exclude={','.join(others)}"] if chosen and others else []),
        *([] if chosen else [f"--nodelist={','.join(names)}"]),
        *([f"--array=0-{jobs - 1}"] if jobs > 1 else []),
        "--no-requeue",
        "--export=NIL",
        "--chdir=/",
        "--output=/dev/null",
        *request.options,
    )


def batch_script(jobs: Sequence[str]) -> str:
    """The script of an allocation: on each node it starts what is staged there, as soon as it is.

    If srun fails, its last line becomes the comment of the Slurm job, where `mnt` looks for it.

    Args:
        jobs: of an array, in its order, or only one.
    """
    line = start_line(None, within=STAGED_WITHIN)
    return f"""#!/bin/sh
# Written by mnt launch: starts what it puts on each node of the allocation.
export PATH=/usr/local/bin:/usr/bin:/bin
set -- {shlex.join(jobs)}
shift "${{SLURM_ARRAY_TASK_ID:-0}}"
line={shlex.quote(line)}
set -- --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --mpi=none --export=ALL /bin/sh -c "$line" sh "$1"
said=$(srun "$@" 2>&1) || {{
    code=$?
    said=$(printf %s "$said" | tail -n 1 | cut -c -200)
    scontrol update "jobid=$SLURM_JOB_ID" "comment=$said"
    exit "$code"
}}
"""
