"""The programs of the guests: Debian packages, unpacked and not installed."""

from __future__ import annotations

import os
from pathlib import Path

from mnt.errors import MntError

TREE = Path(os.environ.get("MNT_CACHE", "/var/cache/mnt")) / "uml"
PTRACE = TREE / "xstate.so"  # see xstate.c


def require() -> None:
    """Raises MntError unless the packages are there."""
    if not (TREE / ".complete").exists() or not PTRACE.exists():
        raise MntError(
            f"no User-Mode Linux and NFS programs in {TREE}",
            fix="bash scripts/nfs-packages.sh",
        )
