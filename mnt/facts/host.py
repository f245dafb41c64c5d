"""The facts that the probe collected on a host, typed. Only `HostFacts.parse` reads the probe's JSON."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from mnt.facts.nccl import ConfFile
from mnt.facts.rdma import RdmaFacts
from mnt.facts.system import (
    Artifacts,
    Exposed,
    Gpus,
    Logind,
    Neighbours,
    Ofed,
    OwnProcesses,
    Resolved,
    Session,
)
from mnt.remote.common.forms import ADDRESSES, EXPOSED, NICS
from mnt.tasks.shape import (
    Address,
    Count,
    DeviceName,
    Duration,
    JobName,
    PathText,
    Pid,
    Port,
    Short,
    UserName,
    parsed,
)


@dataclass(frozen=True)
class Traffic:
    """The packet counters of an interface since it came up."""

    received: Count = 0
    sent: Count = 0
    receive_errors: Count = 0
    send_errors: Count = 0
    receive_drops: Count = 0
    send_drops: Count = 0


@dataclass(frozen=True)
class Interface:
    """A network interface. Addresses are in CIDR form, `10.11.7.50/24`, in the kernel's order."""

    name: DeviceName
    up: bool  # administratively up
    carrier: bool | None  # link detected; None: the driver does not report it
    mtu: Count  # bytes
    ipv4: Annotated[tuple[str, ...], Meta(max_length=ADDRESSES)] = ()
    ipv6: Annotated[tuple[str, ...], Meta(max_length=ADDRESSES)] = ()
    altnames: tuple[DeviceName, ...] = ()
    speed: Count | None = None  # Mbit/s
    loopback: bool = False
    traffic: Traffic | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for an address that is none, or has no prefix length or a zone."""
        for kind, addresses in ((ipaddress.IPv4Interface, self.ipv4), (ipaddress.IPv6Interface, self.ipv6)):
            for address in addresses:
                if not re.fullmatch("[^/%]+/[0-9]+", address):
                    raise ValueError(f"{address!r} is no address with a prefix length")
                kind(address)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The IPv4 addresses without prefix length."""
        return tuple(address.split("/")[0] for address in self.ipv4)


@dataclass(frozen=True)
class OsRelease:
    """The values of os-release(5): `debian`, `12`."""

    id: Short
    version: Short | None = None


@dataclass(frozen=True)
class Machine:
    """What tells a host from others: random(4)'s id of this boot, and the network namespace in it.

    Containers on one machine have one boot id, and are different hosts if each has a network of its own.
    """

    boot_id: Short
    network: Count  # inode of the namespace


@dataclass(frozen=True)
class Account:
    """The user of the SSH session. None: the host's user database has no such entry."""

    uid: Count
    user: UserName | None = None
    home: str | None = None
    shell: str | None = None


@dataclass(frozen=True)
class Interpreter:
    """The Python that ran the probe."""

    argv: tuple[str, ...]  # the command that started it
    configured: bool  # whether it is the interpreter of the inventory
    version: Short  # 3.11.2
    executable: PathText
    problem: str | None = None  # why the configured one was not used
    exposed: Exposed | None = None  # why others could exchange the configured one: the inventory allows it

    @property
    def refused(self) -> str | None:
        """Why the configured one was not run: other users could exchange it, and the inventory forbids it."""
        return self.problem if self.problem and self.problem.startswith(EXPOSED) else None


@dataclass(frozen=True)
class Mounted:
    """A line of /proc/self/mounts."""

    point: PathText
    source: str
    type: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class MountPoint:
    """The mounts at one path."""

    stack: tuple[Mounted, ...]  # mounted exactly there; the last one is on top
    inside: Mounted | None  # the mount that contains the path


@dataclass(frozen=True)
class Space:
    """The size of a file system and the space left for an ordinary user, from statfs(2)."""

    size: Count  # bytes
    free: Count  # bytes
    inodes: Count  # 0: the file system does not count them
    inodes_free: Count


@dataclass(frozen=True)
class PathFacts:
    """The state of a path, for the user who logged in."""

    kind: Literal["file", "dir", "other", "missing", "unreadable", "hung"]
    real: PathText | None = None  # with symbolic links resolved; None: the path hangs
    error: str | None = None
    code: str | None = None  # the name of the error: ESTALE
    space: Space | None = None
    write: str | None = None  # result of creating a file there: ok, or the name of the error; None: not tried


@dataclass(frozen=True)
class WriteTest:
    """The attempt to make a file where a push, a job or its end will write."""

    path: PathText  # what will be written or made there
    directory: PathText  # where it was tried: the path, or the directory above it that exists
    result: Short  # `ok`, the name of the error, or `hung`
    space: Space | None = None
    mount: PathText | None = None  # the mount point of its file system


@dataclass(frozen=True)
class Memory:
    """All values are in bytes. None: the kernel does not report it."""

    total: Count | None = None
    available: Count | None = None
    swap: Count | None = None
    swap_free: Count | None = None
    shm: Space | None = None  # /dev/shm; None: nothing is mounted there
    shm_fixed: bool = False  # whether even root of the host cannot enlarge it, as in a container


@dataclass(frozen=True)
class Listener:
    """A socket that listens on the master port. Only the user's own processes have `pid` and `command`."""

    address: Address
    uid: Count
    user: str | None = None
    pid: Pid | None = None
    command: str | None = None
    job: JobName | None = None  # of this user
    job_state: Short | None = None  # None: unknown


@dataclass(frozen=True)
class HostFacts:
    """The answer of one host. None or an empty mapping: the host did not report it. That proves nothing.

    A host without Python answers with its name, kernel and OS only: `python` is None then, and `attempts`
    lists the interpreters that were looked for.
    """

    hostname: Short
    kernel: Short | None = None
    machine: Machine | None = None
    os: OsRelease | None = None
    clock_offset: Duration = 0.0  # seconds by which the host's clock is ahead of the head's
    clock_uncertainty: Duration | None = None  # possible error of it, in seconds; None: not measured
    login: Account | None = None
    python: Interpreter | None = None
    packages: Mapping[Short, Short] = field(default_factory=dict)  # canonical name (PEP 503) -> version
    torch_cuda: Short | None = None  # "13.0"; "none": a CPU build
    numa_binding: bool | None = None  # whether its torchrun has --numa-binding; None: it has no torch
    nccl_library: Short | None = None  # version of the library file that torch loads
    # Including `lo`; empty: a sandbox hides them.
    interfaces: Annotated[tuple[Interface, ...], Meta(max_length=NICS)] = ()
    neighbours: Neighbours | None = None
    paths: Mapping[str, PathFacts] = field(default_factory=dict)  # required paths and mount points
    mounts: Mapping[str, MountPoint] = field(default_factory=dict)
    writes: tuple[WriteTest, ...] = ()  # none where another user could interfere
    gpus: Gpus | None = None
    listeners: tuple[Listener, ...] | None = None  # on the master port, and the jobs that will
    free_port: Port | None = None  # the next one after the master port
    noise: str = ""  # the end of what the shell's start-up files printed to standard output
    session: Session | None = None
    logind: Logind | None = None
    memory: Memory | None = None
    processes: OwnProcesses | None = None
    artifacts: Artifacts | None = None  # None: the file system hangs
    resolved: Resolved | None = None  # the host's own name; None: the resolver did not answer in time
    ofed: Ofed | None = None
    rdma: RdmaFacts | None = None
    nccl_conf: tuple[ConfFile, ...] = ()  # the existing files; the first has precedence
    attempts: str | None = None

    @classmethod
    def parse(cls, host: str, document: Mapping[str, Any]) -> HostFacts:
        """The facts in the probe's answer. Raises HostError (phase `answer`) if the answer is not valid."""
        return parsed(host, document, cls, "probe")

    @property
    def home(self) -> str:
        """The home directory of the user who logged in: an absolute path, or `~` if it is unknown."""
        return (self.login and self.login.home) or "~"

    @property
    def nccl_packages(self) -> dict[str, str]:
        """The versions of the nvidia-nccl-* packages, by name."""
        return {
            name: self.packages[name] for name in sorted(self.packages) if name.startswith("nvidia-nccl-")
        }

    @property
    def nccl_version(self) -> tuple[int, ...] | None:
        """(2, 28, 9): from the library that torch loads, else from the installed package; None: unknown."""
        installed = next(iter(self.nccl_packages.values()), "")
        return version_numbers(self.nccl_library or installed)

    @property
    def binds_store(self) -> bool:
        """Whether its torchrun finds a rendezvous handler of mnt: torch 2.5 and newer, by PYTHONPATH."""
        torch = version_numbers(self.packages.get("torch", "")) or ()
        return torch >= (2, 5) and self.reads_python_path

    @property
    def reads_python_path(self) -> bool:
        """Whether its interpreter reads PYTHONPATH: not with the options `-E` and `-I`."""
        words = self.python.argv if self.python else ()
        return not any(re.fullmatch("-[A-DF-HJ-Za-z]*[EI][A-Za-z]*", word) for word in words)

    @property
    def trains_with(self) -> Interpreter | None:
        """The configured interpreter. None: it does not run, so its packages are unknown."""
        return self.python if self.python and self.python.configured else None


def version_numbers(text: str) -> tuple[int, ...] | None:
    """The numbers that a version begins with: (6, 1, 0) of `6.1.0-18-amd64`. None: fewer than two."""
    found = re.match(r"[0-9]{1,9}(\.[0-9]{1,9})+", text)
    return tuple(map(int, found[0].split("."))) if found else None
