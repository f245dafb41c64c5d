"""mpirun (Open MPI) on node 0 starts the supervisors of all nodes, and lives as long as they do."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mnt.launch.backends.api import Outside, start_line
from mnt.launch.backends.ssh import SshBackend

if TYPE_CHECKING:
    from mnt.launch.plan import LaunchPlan


class MpiBackend(SshBackend):
    """As over SSH, but for the start. mpirun ends with the job; if it is ended, so is the job."""

    name = "mpi"

    def outside(self, plan: LaunchPlan) -> Outside | None:
        hosts = [node.host for node in plan.nodes]

        def by_hand(directory: str) -> tuple[str, ...]:
            return _argv(hosts, f"exec sh {shlex.quote(directory)}/$OMPI_COMM_WORLD_RANK-*.sh")

        return Outside(
            "mpirun",
            _argv(hosts, start_line(plan.job)),
            needs={"orted": "openmpi-bin"},
            needs_first={"mpirun": "openmpi-bin"},
            by_hand=by_hand,
        )


def _argv(hosts: Sequence[str], line: str) -> tuple[str, ...]:
    """A process on each host, in their order."""
    slots = ",".join(f"{host}:1" for host in hosts)
    start = ("mpirun", "--allow-run-as-root", "--host", slots, "-np", str(len(hosts)))
    return (*start, "--map-by", "ppr:1:node", "--bind-to", "none", "sh", "-c", line)
