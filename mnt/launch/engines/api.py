"""The interface of an engine: it builds a node's command, and names the reader of what that leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Program:
    """The program that every rank runs."""

    name: str  # a script's path, relative to the working directory or absolute; or the name of a module
    args: tuple[str, ...] = ()  # byte for byte (surrogate escapes)
    module: bool = False  # as in `python -m`
    local_rank: bool = False  # whether each rank gets `--local_rank=N` before `args`

    @property
    def script(self) -> str | None:
        """The file that must exist; None for a module."""
        return None if self.module else self.name


@dataclass(frozen=True)
class NodeRole:
    """Everything that a node's command depends on. Paths are absolute."""

    python: tuple[str, ...]  # the words that start the interpreter
    nodes: int  # of the job
    node_rank: int
    nproc: int  # processes on this node
    master_addr: str  # numeric
    master_port: int
    local_addr: str  # of this node, on the training network
    ranks: str  # the directory for the ranks' own logs
    program: Program
    binds_store: bool = True  # whether the torchrun of every node can use `python_files` of the engine


@dataclass(frozen=True)
class Engine:
    """A way to start the ranks of a node."""

    name: str
    script: str  # runs if no SCRIPT is given: a path in the code tree
    argv: Callable[[NodeRole], list[str]]  # the node's command: pure
    remains: str  # the name of its reader in mnt/remote/job/remains/readers.py
    # From the caller's environment, the name of a file with variables in the home or the working directory.
    env_file: Callable[[Mapping[str, str]], str] | None = None
    local_rank: bool = False  # whether scripts expect `--local_rank=N`, and get it unless the user says no
    # Files for the directory that is put first on PYTHONPATH of each node: relative path -> text.
    python_files: Mapping[str, str] = field(default_factory=dict)
