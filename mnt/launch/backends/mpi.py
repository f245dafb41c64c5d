"""mpirun (Open MPI) on node 0 starts the supervisors of all nodes, and lives as long as they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnt.launch.backends.api import Outside, start_line
from mnt.launch.backends.ssh import SshBackend

if TYPE_CHECKING:
    from mnt.launch.plan import LaunchPlan


class MpiBackend(SshBackend):
    """As over SSH, but for the start. mpirun ends with the job; if it is ended, so is the job."""

    name = "mpi"

    def outside(self, plan: LaunchPlan) -> Outside | None:
        hosts = ",".join(f"{node.host}:1" for node in plan.nodes)
        argv = ["mpirun", "--allow-run-as-root", "--host", hosts, "-np", str(len(plan.nodes))]
        argv += ["--map-by", "ppr:1:node", "--bind-to", "none", "sh", "-c", start_line(plan.job)]
        return Outside(
            "mpirun", tuple(argv), needs={"orted": "openmpi-bin"}, needs_first={"mpirun": "openmpi-bin"}
        )
