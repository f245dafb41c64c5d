"""Real NFS for the tests: a filer and nodes, each a Linux kernel that runs as a process (User-Mode Linux).

The machine's own kernel need not know NFS. `NfsLab` is the lab, `faults` breaks and mends its mounts.
"""

from nfs import packages
from nfs.faults import FAULTS, heal, inject
from nfs.lab import NfsLab

__all__ = ["FAULTS", "NfsLab", "heal", "inject", "packages"]
