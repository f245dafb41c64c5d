"""Slurm on lab hosts, by `mnt setup slurm`, with what they have instead of systemd and control groups."""

from __future__ import annotations

from setups import allow_sudo, output, setup

from mnt.lab.lab import Lab, LabHost

PLUGINS = {
    "slurm_proctrack": "proctrack/linuxproc",
    "slurm_task_plugin": "task/none",
    "slurm_cgroup_plugin": "cgroup/v1",
}
# The hosts see the packages of this machine, but not its /var/log and /var/spool.
_DIRECTORIES = """
install -d -o munge -g munge /var/log/munge
install -d -o slurm -g slurm /var/log/slurm /var/lib/slurm /var/spool/slurm
"""


def start_slurm(lab: Lab) -> None:
    """A Slurm on all hosts, with the first as its controller. The packages are there."""
    allow_sudo(lab)
    for host in lab.hosts:
        output(host, "sh", "-c", _DIRECTORIES)
    setup(lab, "slurm", **PLUGINS)


def queue(host: LabHost) -> list[str]:
    """`ID STATE` of each job that has not ended."""
    return output(host, "squeue", "--noheader", "--format", "%i %T").splitlines()
