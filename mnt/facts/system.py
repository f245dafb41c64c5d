"""The GPUs, the session and the processes of a host, typed: parts of `HostFacts`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from mnt.tasks.shape import Count, Duration, Pid, Short

Row = Annotated[Mapping[Short, Short], Meta(max_length=256)]
_NO_ANSWER = re.compile(r"\blost\b|unknown error|\berr!|requires? reset|fallen off", re.IGNORECASE)

Rows = Annotated[tuple[Row, ...], Meta(max_length=1024)]


@dataclass(frozen=True)
class LogLine:
    """A line of the kernel log."""

    age: Duration
    text: Annotated[str, Meta(max_length=4096)]


@dataclass(frozen=True)
class KernelLog:
    """The Xid lines of the kernel log since boot; `error`: why this user cannot read the log."""

    lines: Annotated[tuple[LogLine, ...], Meta(max_length=4096)] = ()
    error: str | None = None


@dataclass(frozen=True)
class Gpus:
    """The output of nvidia-smi, and the GPUs on the PCI bus. A host that has neither has no GPUs: no error.

    A row maps column names, without the unit in the header, to texts as printed. A value is `[N/A]` or
    `[Not Supported]` if the GPU does not report it, and is missing if the driver does not know the column.
    """

    tool: str | None = None  # path of nvidia-smi
    found: Rows = ()  # --query-gpu
    error: str | None = None  # nvidia-smi listed no GPU: its words
    warning: str | None = None  # it listed GPUs: its words besides, or its exit status
    rows: Rows = ()  # --query-remapped-rows
    processes: Rows = ()  # --query-compute-apps
    links: str = ""  # nvlink -s
    # PCI addresses of the NVIDIA GPUs, with or without a driver.
    on_bus: Annotated[tuple[Short, ...], Meta(max_length=1024)] = ()
    fabric_manager: bool | None = None  # whether it runs; None: not needed here, or processes are hidden
    kernel_log: KernelLog | None = None

    @property
    def usable(self) -> tuple[Row, ...]:
        """The GPUs that answer: of a lost one, nvidia-smi lists the error instead of its values."""
        return tuple(row for row in self.found if failure_of(row) is None)


def failure_of(row: Row) -> str | None:
    """Why a GPU does not answer: `GPU is lost`, `ERR!`, from the texts of its name, UUID and memory."""
    texts = (row.get(column, "").strip("[] ") for column in ("name", "uuid", "memory.total"))
    return next((text for text in texts if _NO_ANSWER.search(text)), None)


@dataclass(frozen=True)
class Neighbours:
    """The kernel's table of IPv4 neighbours: arp(7). All network namespaces of a kernel share it."""

    limit: Count  # entries that it can hold: gc_thresh3
    entries: Count  # now
    overflows: Count | None = None  # since boot; None: an old kernel does not count them


@dataclass(frozen=True)
class Session:
    """The kind of session in which jobs are started. None: unknown; for the two limits: unlimited."""

    umask: Annotated[int, Meta(ge=0, le=0o777)]
    path: str  # $PATH
    nofile: Count | None  # files that a process may open
    memlock: Count | None  # bytes that it may lock in memory
    scope: str | None = None  # logind's unit for the session, `session-5.scope`
    shell_seconds: Duration | None = None  # from the start of the login shell to the start of Python
    python_seconds: Duration | None = None  # from the start of Python to the first line of the probe


@dataclass(frozen=True)
class Logind:
    """What systemd-logind does when a user logs out; settings as in logind.conf(5)."""

    booted: bool  # whether the host was booted with systemd
    settings: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)  # of the distribution, if its file lists them
    lingers: bool = False  # whether `loginctl enable-linger` was run for the user who logs in


@dataclass(frozen=True)
class Zombies:
    """Zombie processes of the user who logs in: their parent has not waited for them."""

    parent: Pid
    command: str  # of the parent
    count: Count


@dataclass(frozen=True)
class Leftover:
    """Processes of one of the user's jobs whose supervisor is gone."""

    job: str
    pids: tuple[Pid, ...]
    command: str  # of the first


@dataclass(frozen=True)
class OwnProcesses:
    """The processes of the user who logs in that the checks look at."""

    zombies: tuple[Zombies, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    compiling: bool = False  # whether a compiler of torch extensions runs


@dataclass(frozen=True)
class Release:
    """The release that `current` in the workdir points to; None: nothing was pushed there."""

    id: Short | None = None
    whole: bool = False  # whether both its tree and its manifest exist


@dataclass(frozen=True)
class BuildLock:
    """A lock file of a torch extension build that runs, or was killed."""

    path: str
    age: Duration


@dataclass(frozen=True)
class Exposed:
    """A directory that another user made, or can write to, and how to mend that."""

    message: str
    fix: str | None = None


@dataclass(frozen=True)
class Artifacts:
    """Files on disk from earlier pushes and builds."""

    release: Release
    locks: tuple[BuildLock, ...] = ()
    exposed: tuple[Exposed, ...] = ()  # of the workdir, of the jobs' directory, and of that in /tmp


@dataclass(frozen=True)
class Resolved:
    """The addresses to which the host resolves its own name."""

    addresses: tuple[str, ...] = ()
    error: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for an address that is none."""
        for address in self.addresses:
            ipaddress.ip_address(address)


@dataclass(frozen=True)
class Ofed:
    """The RDMA software of a host that has an RDMA device."""

    libibverbs: Short | None = None  # version of the library file: rdma-core 39.0 has 1.14.39.0
    mlx5_core: Short | None = None  # version of the kernel module; only NVIDIA's own OFED reports one
