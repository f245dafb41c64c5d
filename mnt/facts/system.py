"""What the probe found of a host's GPUs, session and processes, typed: parts of `HostFacts`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LogLine:
    """A line of the kernel log."""

    age: float  # seconds
    text: str


@dataclass(frozen=True)
class KernelLog:
    """The lines of the kernel log that speak of an Xid, since boot; `error`: why this user may not know."""

    lines: tuple[LogLine, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Gpus:
    """What nvidia-smi says, and the PCI bus. A host without both has no GPUs: a fact, not an error.

    Rows are texts by column name, as printed, without the unit that the header has. What a GPU cannot tell is
    `[N/A]` or `[Not Supported]`, what a driver cannot tell is not there.
    """

    tool: str | None = None  # path of nvidia-smi
    found: tuple[Mapping[str, str], ...] = ()  # --query-gpu
    error: str | None = None  # nvidia-smi failed
    rows: tuple[Mapping[str, str], ...] = ()  # --query-remapped-rows
    processes: tuple[Mapping[str, str], ...] = ()  # --query-compute-apps
    links: str = ""  # nvlink -s
    on_bus: tuple[str, ...] = ()  # PCI addresses of NVIDIA's GPUs, with or without a driver
    switches: int = 0  # NVSwitches on the PCI bus
    fabric_manager: bool | None = None  # its process runs; None: nobody needs it, or processes are hidden
    kernel_log: KernelLog | None = None


@dataclass(frozen=True)
class Session:
    """The kind of session in which jobs are started. A None is not known, of a limit: there is none."""

    umask: int
    path: str  # $PATH
    nofile: int | None  # files that a process may open
    memlock: int | None  # bytes that it may lock in memory
    scope: str | None = None  # logind's unit for the session, `session-5.scope`
    shell_seconds: float | None = None  # from the start of the login shell to that of Python
    python_seconds: float | None = None  # and from there to the probe's first lines


@dataclass(frozen=True)
class Logind:
    """What systemd-logind is told to do when a user logs out; settings as in logind.conf(5)."""

    booted: bool  # with systemd
    settings: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)  # of the distribution, as far as its file tells
    lingers: bool = False  # `loginctl enable-linger` was done for the user who logs in


@dataclass(frozen=True)
class Zombies:
    """Dead processes of the user who logs in, that their parent has not waited for."""

    parent: int  # pid
    command: str  # of the parent
    count: int


@dataclass(frozen=True)
class Leftover:
    """Processes of a job of ours whose supervisor is gone."""

    job: str
    pids: tuple[int, ...]
    command: str  # of the first


@dataclass(frozen=True)
class OwnProcesses:
    """What is notable among the processes of the user who logs in."""

    zombies: tuple[Zombies, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    compiling: bool = False  # a compiler of torch's extensions runs


@dataclass(frozen=True)
class Release:
    """What `current` in the workdir leads to; None: nothing was pushed there."""

    id: str | None = None
    whole: bool = False  # its tree and its manifest are there


@dataclass(frozen=True)
class BuildLock:
    """The lock that a build of a torch extension holds, or has left."""

    path: str
    age: float  # seconds


@dataclass(frozen=True)
class Artifacts:
    """What earlier pushes and builds have left on disk."""

    release: Release
    locks: tuple[BuildLock, ...] = ()


@dataclass(frozen=True)
class Resolved:
    """What the host's own name resolves to there."""

    addresses: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Ofed:
    """The RDMA software of a host that has an RDMA device."""

    libibverbs: str | None = None  # version of the library file: rdma-core 39.0 has 1.14.39.0
    mlx5_core: str | None = None  # version of the module; only NVIDIA's own OFED has one
