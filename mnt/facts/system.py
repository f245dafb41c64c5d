"""The GPUs, the session and the processes of a host, typed: parts of `HostFacts`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from mnt.remote.common.forms import ADDRESSES, LONGEST_PATH
from mnt.tasks.shape import Address, Count, Duration, JobName, PathText, Pid, Short

_NO_ANSWER = re.compile(r"\blost\b|unknown error|\berr!|requires? reset|fallen off", re.IGNORECASE)

Cell = Short | None  # as printed; None: the driver does not know the column


def _column(name: str) -> Any:
    """A field with the name that nvidia-smi gives to its column."""
    return msgspec.field(default=None, name=name)


class GpuRow(Struct, frozen=True):
    """A GPU, as `nvidia-smi --query-gpu` prints it, without the units in the header.

    A cell is `[N/A]` or `[Not Supported]` if the GPU does not report it.
    """

    index: Annotated[str, Meta(pattern=r"\A[0-9]{1,9}\Z")]
    name: Cell = None
    uuid: Cell = None
    bus_id: Cell = _column("pci.bus_id")
    driver_version: Cell = None
    memory_total: Cell = _column("memory.total")
    memory_used: Cell = _column("memory.used")
    persistence_mode: Cell = None
    ecc_mode: Cell = _column("ecc.mode.current")
    ecc_recent: Cell = _column("ecc.errors.uncorrected.volatile.total")
    ecc_ever: Cell = _column("ecc.errors.uncorrected.aggregate.total")
    link_width: Cell = _column("pcie.link.width.current")
    link_width_max: Cell = _column("pcie.link.width.max")
    mig_mode: Cell = _column("mig.mode.current")
    event_reasons: Cell = _column("clocks_event_reasons.active")
    throttle_reasons: Cell = _column("clocks_throttle_reasons.active")
    fabric_state: Cell = _column("fabric.state")
    fabric_status: Cell = _column("fabric.status")
    recovery_action: Cell = _column("gpu_recovery_action")


class RemappedRows(Struct, frozen=True):
    """A line of `nvidia-smi --query-remapped-rows`."""

    gpu_uuid: Short
    pending: Cell = _column("remapped_rows.pending")
    failure: Cell = _column("remapped_rows.failure")


class GpuProcess(Struct, frozen=True):
    """A line of `nvidia-smi --query-compute-apps`."""

    gpu_uuid: Short
    pid: Cell = None
    memory: Cell = _column("used_gpu_memory")
    name: Cell = _column("process_name")


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
    """The output of nvidia-smi, and the GPUs on the PCI bus. A host that has neither has no GPUs."""

    tool: PathText | None = None  # path of nvidia-smi
    found: Annotated[tuple[GpuRow, ...], Meta(max_length=1024)] = ()
    error: str | None = None  # nvidia-smi listed no GPU: its words
    warning: str | None = None  # it listed GPUs: its words besides, or its exit status
    rows: Annotated[tuple[RemappedRows, ...], Meta(max_length=1024)] = ()
    processes: Annotated[tuple[GpuProcess, ...], Meta(max_length=1024)] = ()
    links: str = ""  # nvlink -s
    # PCI addresses of the NVIDIA GPUs, with or without a driver.
    on_bus: Annotated[tuple[Short, ...], Meta(max_length=1024)] = ()
    fabric_manager: bool | None = None  # whether it runs; None: not needed here, or processes are hidden
    kernel_log: KernelLog | None = None

    @property
    def usable(self) -> tuple[GpuRow, ...]:
        """The GPUs that answer: of a lost one, nvidia-smi lists the error instead of its values."""
        return tuple(row for row in self.found if failure_of(row) is None)


def failure_of(row: GpuRow) -> str | None:
    """Why a GPU does not answer: `GPU is lost`, `ERR!`, from the texts of its name, UUID and memory."""
    texts = ((cell or "").strip("[] ") for cell in (row.name, row.uuid, row.memory_total))
    return next((text for text in texts if _NO_ANSWER.search(text)), None)


@dataclass(frozen=True)
class Neighbours:
    """The kernel's table of IPv4 neighbours: arp(7). All network namespaces of a kernel share it."""

    limit: Count  # entries that it can hold: gc_thresh3
    entries: Count  # now
    overflows: Count | None = None  # since boot; None: an old kernel does not count them


@dataclass(frozen=True)
class TooLow:
    """Why a job cannot have a limit, as the host says it."""

    message: Short
    fix: Short | None = None


@dataclass(frozen=True)
class Session:
    """The kind of session in which jobs are started. None: unknown; for the two limits: unlimited.

    The limits are those of jobs, which `ulimit` in the inventory may raise.
    """

    umask: Annotated[int, Meta(ge=0, le=0o777)]
    path: str  # $PATH
    nofile: Count | None  # files that a process may open
    memlock: Count | None  # bytes that it may lock in memory
    nofile_most: Count | None = None  # what even root of the host cannot raise it above, as in a container
    memlock_most: Count | None = None
    ulimit: tuple[TooLow, ...] = ()  # of the inventory, what a job cannot have
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

    job: JobName
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

    path: Annotated[str, Meta(max_length=LONGEST_PATH, pattern=r"\A[^\x00]*/lock\Z")]  # a fix removes it
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

    addresses: Annotated[tuple[Address, ...], Meta(max_length=ADDRESSES)] = ()
    error: str | None = None


@dataclass(frozen=True)
class Ofed:
    """The RDMA software of a host that has an RDMA device."""

    libibverbs: Short | None = None  # version of the library file: rdma-core 39.0 has 1.14.39.0
    mlx5_core: Short | None = None  # version of the kernel module; only NVIDIA's own OFED reports one
