"""The software for RDMA, by its files. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import os

from mnt.remote.common.files import entries, read

_LIBRARY = "libibverbs.so.1"


def ofed(root: str = "/") -> dict[str, str | None] | None:
    """In the shape of `mnt.facts.system.Ofed`; None without an RDMA device."""
    if not entries(os.path.join(root, "sys/class/infiniband")):
        return None
    module = read(os.path.join(root, "sys/module/mlx5_core/version")).strip()
    return {"libibverbs": _libibverbs(root), "mlx5_core": module or None}


def _libibverbs(root: str) -> str | None:
    """The library's own version, `1.14.39.0`: the name of the file that its soname leads to."""
    machine = os.uname().machine
    for directory in (f"usr/lib/{machine}-linux-gnu", "usr/lib64", "usr/lib"):
        target = os.path.realpath(os.path.join(root, directory, _LIBRARY))
        version = os.path.basename(target).partition(".so.")[2]
        if os.path.exists(target) and version.count("."):
            return version
    return None
