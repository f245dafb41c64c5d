"""The interface of an engine: it builds a node's command, and names the reader of what that leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mnt.launch.jobs import Member


@dataclass(frozen=True)
class Program:
    """The program that every rank runs."""

    name: str  # a script's path, relative to the working directory or absolute; or the name of a module
    args: tuple[str, ...] = ()  # byte for byte (surrogate escapes)
    module: bool = False  # as in `python -m`
    local_rank: bool = False  # whether each rank gets `--local_rank=N` before `args`
    executable: bool = False  # any program: a path if there is a slash in the name, else one of PATH

    @property
    def script(self) -> str | None:
        """The file that must exist; None for a module, and for a program of PATH."""
        return None if self.module or (self.executable and "/" not in self.name) else self.name

    @property
    def path(self) -> str:
        """The name as a word that no interpreter takes for an option."""
        return f"./{self.name}" if self.name.startswith("-") and not self.module else self.name


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
    ranks: str  # the directory for the ranks' own logs: of this node only, so what opens files there is safe
    program: Program
    numa: str | None = None  # how torchrun binds each process to the CPUs near its GPU
    binds_store: bool = True  # whether the torchrun of every node can use `python_files` of the engine
    job: str = ""
    members: tuple[Member, ...] = ()  # all nodes of the job, in rank order
    devices: str | None = None  # CUDA_VISIBLE_DEVICES of this node; None: not set, or secret
    reads_python_path: bool = True  # whether its interpreter finds `python_files` of the engine
    grace: float = 10.0  # seconds between TERM and KILL

    @property
    def world_size(self) -> int:
        return sum(member.nproc for member in self.members)

    @property
    def first_rank(self) -> int:
        """The global rank of local rank 0."""
        return sum(member.nproc for member in self.members[: self.node_rank])


def _no_variables(node: NodeRole) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Engine:
    """A way to start the ranks of a node."""

    name: str
    script: str | None  # runs if no SCRIPT is given: a path in the code tree; None: there must be one
    argv: Callable[[NodeRole], list[str]]  # the node's command: pure; raises NeverStarted for a misfit
    remains: str  # the name of its reader in mnt/remote/job/remains/readers.py
    # From the caller's environment, the name of a file with variables in the home or the working directory.
    env_file: Callable[[Mapping[str, str]], str] | None = None
    local_rank: bool = False  # whether scripts expect `--local_rank=N`, and get it unless the user says no
    # Files for the directory that is put first on PYTHONPATH of each node: relative path -> text.
    python_files: Mapping[str, str] = field(default_factory=dict)
    variables: Callable[[NodeRole], Mapping[str, str]] = _no_variables  # of the node's command: pure
    executable: bool = False  # see Program
    torch: bool = True  # whether the ranks train with torch
    packages: tuple[str, ...] = ()  # further ones that the interpreter of every node must have
    files: tuple[str, ...] = ()  # further ones that must be in the code tree
    listens: bool = True  # whether the job has started only when node 0 LISTENs on the master port
    by_address: bool = False  # node ranks follow the training addresses as text, not the user's order
    cpu_variable: str | None = None  # which must be `true` on a host without GPUs
    by_hand: bool = False  # its command needs nothing of mnt's on the node, unless `binds_store`
    open_store: bool = False  # its store listens on every address of the master
