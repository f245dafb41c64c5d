"""What the engines share that start a node's ranks by a small program of ours (`mnt.remote.slots.slots`)."""

from __future__ import annotations

from importlib import resources

from mnt.errors import NeverStarted
from mnt.launch.engines.api import NodeRole

_SOURCE = resources.files("mnt.remote.slots").joinpath("slots.py")
_MODULE = "mnt_slots"


def slots_files() -> dict[str, str]:
    """The `python_files` with which an interpreter finds the program."""
    return {f"{_MODULE}.py": _SOURCE.read_text(encoding="utf-8")}


def slots(node: NodeRole, mode: str, *options: str, words: list[str]) -> list[str]:
    """The argv that starts the program in one of its modes. Raises NeverStarted: it could not be found."""
    if not node.reads_python_path:
        raise NeverStarted(
            f"{' '.join(node.python)} ignores PYTHONPATH (-E or -I), by which it finds what starts the ranks",
            fix="remove that option from `python` of this host in the inventory",
        )
    return [
        *node.python,
        "-m",
        _MODULE,
        mode,
        f"--ranks={node.ranks}",
        f"--first-rank={node.first_rank}",
        f"--nproc={node.nproc}",
        f"--world-size={node.world_size}",
        f"--nodes={node.nodes}",
        f"--node-rank={node.node_rank}",
        f"--grace={node.grace:g}",
        *options,
        "--",
        *words,
    ]
