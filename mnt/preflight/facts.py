"""What the probe found on the hosts, typed. `HostFacts.parse` is the only reader of the probe's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mnt import typed
from mnt.errors import HostError
from mnt.network.nccl import ConfFile
from mnt.network.rdma import RdmaFacts
from mnt.preflight.pairs import Reach
from mnt.preflight.system import Artifacts, Gpus, Logind, Ofed, OwnProcesses, Resolved, Session
from mnt.preflight.trial import Trial

if TYPE_CHECKING:
    from mnt.inventory.model import Host, Inventory


@dataclass(frozen=True)
class Traffic:
    """Packets that an interface has counted since it came up."""

    received: int = 0
    sent: int = 0
    receive_errors: int = 0
    send_errors: int = 0
    receive_drops: int = 0
    send_drops: int = 0


@dataclass(frozen=True)
class Interface:
    """A network interface. Addresses are in CIDR form, `10.11.7.50/24`, in the kernel's order."""

    name: str
    up: bool  # administratively up
    carrier: bool | None  # link detected; None: the driver does not say
    mtu: int  # bytes
    ipv4: tuple[str, ...] = ()
    ipv6: tuple[str, ...] = ()
    altnames: tuple[str, ...] = ()
    mac: str | None = None
    speed: int | None = None  # Mbit/s
    loopback: bool = False
    traffic: Traffic | None = None


@dataclass(frozen=True)
class OsRelease:
    """What os-release(5) says: `debian`, `12`, `Debian GNU/Linux 12 (bookworm)`."""

    id: str
    version: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Login:
    """Who the SSH session runs as. A None is not known to the host's user database."""

    uid: int
    user: str | None = None
    home: str | None = None
    shell: str | None = None


@dataclass(frozen=True)
class Interpreter:
    """The Python that ran the probe."""

    argv: tuple[str, ...]  # how it was started
    configured: bool  # it is the one of the inventory
    version: str  # 3.11.2
    implementation: str  # cpython
    executable: str
    why: str | None = None  # why it is not the configured one


@dataclass(frozen=True)
class Mounted:
    """A line of /proc/self/mounts."""

    point: str
    source: str
    type: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class MountPoint:
    """What is mounted at a path, the last on top; and the mount that holds the path."""

    stack: tuple[Mounted, ...]
    inside: Mounted | None


@dataclass(frozen=True)
class Space:
    """What statfs(2) says of a file system: what there is, and what an ordinary user can still have."""

    size: int  # bytes
    free: int  # bytes
    inodes: int  # 0: the file system does not count them
    inodes_free: int


@dataclass(frozen=True)
class PathFacts:
    """What a path is, as the user who logged in sees it."""

    kind: str  # file, dir, other, missing, unreadable or hung
    real: str | None = None  # without symbolic links; None: it hangs
    error: str | None = None
    code: str | None = None  # the error's name: ESTALE
    space: Space | None = None
    write: str | None = None  # creating a file there: ok, or the error's name; None: not tried


@dataclass(frozen=True)
class Memory:
    """Bytes. A None: the kernel does not tell."""

    total: int | None = None
    available: int | None = None
    swap: int | None = None
    swap_free: int | None = None
    shm: Space | None = None  # /dev/shm; None: nothing is mounted there


@dataclass(frozen=True)
class Listener:
    """A socket that LISTENs on the master port. pid and command are those of our own processes only."""

    address: str
    uid: int
    user: str | None = None
    pid: int | None = None
    command: str | None = None


@dataclass(frozen=True)
class HostFacts:
    """What one host answered. A None, an empty mapping: the host did not say, which is never a verdict.

    A host without any Python answers with its name, kernel and OS alone: `python` is None, and `tried` says
    which interpreters were looked for.
    """

    hostname: str
    kernel: str | None = None
    os: OsRelease | None = None
    machine: str | None = None  # x86_64
    boot_id: str | None = None
    time: float | None = None  # seconds since the epoch, by the host's clock
    clock_offset: float = 0.0  # seconds that it is ahead of the head's
    clock_uncertainty: float | None = None  # seconds by which that may be wrong; None: it was not measured
    login: Login | None = None
    python: Interpreter | None = None
    packages: Mapping[str, str] = field(default_factory=dict)  # canonical name (PEP 503) -> version
    torch_cuda: str | None = None  # "13.0"; "none": a CPU build
    nccl_library: str | None = None  # of the file that torch loads
    interfaces: tuple[Interface, ...] = ()  # with `lo`; none at all: a sandbox hides them
    paths: Mapping[str, PathFacts] = field(default_factory=dict)  # required paths and mount points
    mounts: Mapping[str, MountPoint] = field(default_factory=dict)
    gpus: Gpus | None = None
    listeners: tuple[Listener, ...] | None = None  # on the master port
    noise: str = ""  # what start-up files have printed to standard output, its end
    session: Session | None = None
    logind: Logind | None = None
    memory: Memory | None = None
    processes: OwnProcesses | None = None
    artifacts: Artifacts | None = None  # None: the file system hangs
    resolved: Resolved | None = None  # the host's own name; None: no answer in time
    ofed: Ofed | None = None
    rdma: RdmaFacts | None = None
    nccl_conf: tuple[ConfFile, ...] = ()  # those there are, the strongest first
    tried: str | None = None

    @classmethod
    def parse(cls, host: str, document: Mapping[str, Any]) -> HostFacts:
        """The probe's answer. Raises HostError (phase `answer`) where it is not what a probe says."""
        try:
            facts: HostFacts = typed.convert(document, cls)
            return facts
        except typed.Misfit as misfit:
            raise HostError(
                host,
                "answer",
                f"the probe's {typed.dotted(misfit.location) or 'answer'} is not usable: {misfit.problem}",
                fix="run it again; if it stays so, look at what replaces Python or /proc on that host",
            ) from None

    @property
    def home(self) -> str:
        """The home directory of the user who logged in, absolute where the host knows it."""
        return (self.login and self.login.home) or "~"

    @property
    def trains_with(self) -> Interpreter | None:
        """The configured interpreter; None where it does not run, so that its packages are not known."""
        return self.python if self.python and self.python.configured else None


@dataclass(frozen=True)
class Sighting:
    """What a host saw of a file that another wrote: seconds until it could be read, or why it never could."""

    delay: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Nonce:
    """A file that one host wrote to shared storage, or why it could not; and what the others saw, by host."""

    writer: str
    error: str | None = None
    seen: Mapping[str, Sighting] = field(default_factory=dict)


@dataclass(frozen=True)
class FleetFacts:
    """All that the checks judge.

    Every selected host has either `facts` or an `errors` entry. `mesh` says by worker why the master could
    not log in to it, None for success; it is None itself where nobody tried, or the master did not answer.
    `nonces` has an entry for each path of the storage that two hosts could look at; None: nobody tried.
    """

    inventory: Inventory
    hosts: Sequence[Host]  # in rank order; the first is the master
    facts: Mapping[str, HostFacts]
    errors: Mapping[str, HostError] = field(default_factory=dict)
    mesh: Mapping[str, str | None] | None = None
    nonces: Mapping[str, Nonce] | None = None
    reach: Reach | None = None  # None: nobody tried, or there are no two hosts that could
    trial: Trial | None = None  # of `--deep`

    @property
    def master(self) -> Host:
        return self.hosts[0]

    def answers(self) -> Iterator[tuple[Host, HostFacts]]:
        """The hosts that answered, in rank order."""
        for host in self.hosts:
            if host.name in self.facts:
                yield host, self.facts[host.name]

    def interfaces(self) -> dict[str, tuple[Interface, ...]]:
        """By host, as `mnt.network.nic.choose` takes them; hosts that did not say are left out."""
        return {host.name: facts.interfaces for host, facts in self.answers() if facts.interfaces}
