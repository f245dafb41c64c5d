"""The inventory as the rest of `mnt` sees it: plain, frozen, resolved values.

The loader turns a YAML file into these; nothing else knows what the file looked like. Every `Host` carries
its own final settings (cluster < group < host), so no reader has to merge anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Ssh:
    """How to log in. A None leaves the choice to the user's ssh_config, then to OpenSSH's defaults."""

    user: str | None = None
    port: int | None = None
    identity: str | None = None  # path, `~` still in it
    known_hosts: str = "~/.ssh/known_hosts"
    config: str | None = "~/.ssh/config"  # an ssh_config file; None: read none
    gateway: str | None = None  # [user@]host[:port], or several of them with commas, as in ProxyJump
    host_keys: str = "accept-new"  # or "strict"


@dataclass(frozen=True)
class Rdma:
    """Which RDMA devices train, and how. Empty or `auto`: chosen by `mnt.network.hca`."""

    devices: tuple[str, ...] = ()
    gid_index: int | str = "auto"
    gdr_level: str | None = None


@dataclass(frozen=True)
class Tuning:
    """What is asked of NCCL beyond what `mnt` computes. A None or () leaves it to NCCL."""

    socket_nthreads: int | None = None
    nsocks_perthread: int | None = None
    buffer_size: int | None = None  # bytes
    p2p_level: str | None = None  # LOC, NVL, PIX, PXB, PHB or SYS
    cross_nic: int | None = None  # 0, 1 or 2
    topo_file: str | None = None  # an absolute path on the host
    debug: str | None = None  # VERSION, WARN, INFO or TRACE
    debug_subsys: tuple[str, ...] = ()
    ib_timeout: int | None = None  # 4.096 us x 2^n
    ib_retry_count: int | None = None
    ib_traffic_class: int | None = None
    ib_service_level: int | None = None
    ib_qps_per_connection: int | None = None


@dataclass(frozen=True)
class Host:
    """One bare-metal host, with the settings that hold for it."""

    name: str
    address: str  # where SSH goes; the name itself unless the inventory says otherwise
    ssh: Ssh = field(default_factory=Ssh)
    python: tuple[str, ...] = ("python3",)  # argv prefix of the interpreter that trains
    workdir: str = "~/mnt"
    jobs_dir: str = "~/.mnt/jobs"
    gpus: int = 0
    nic: str | None = None  # training NIC; None: chosen by mnt.network.nic
    env: Mapping[str, str] = field(default_factory=dict)  # cluster < group < host, merged
    keep: tuple[str, ...] = ("outputs",)  # directories of `shared/` linked into every release
    rdma: Rdma = field(default_factory=Rdma)
    tuning: Tuning = field(default_factory=Tuning)
    exclude: tuple[str, ...] = ()  # patterns of NICs and RDMA devices that are taken only when named

    @property
    def slots(self) -> int:
        """Processes to start here unless told otherwise: one a GPU, one where there is none."""
        return max(1, self.gpus)


@dataclass(frozen=True)
class Network:
    """What holds for the training network as a whole; each `Host` has what may differ between hosts."""

    mode: str = "auto"  # tcp, rdma or auto
    subnet: str | None = None  # CIDR of the training network
    nic: str | None = None
    master_port: int = 29500


@dataclass(frozen=True)
class Mount:
    """A mount that every host must have. None: anything goes."""

    path: str
    type: str | None = None
    source: str | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class RequiredPath:
    path: str
    kind: str = "any"  # file, dir or any


@dataclass(frozen=True)
class Inventory:
    """A cluster. `hosts` keeps the order of the file: it is rank order."""

    cluster: str
    file: str
    hosts: tuple[Host, ...]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    storage: tuple[Mount, ...] = ()
    paths: tuple[RequiredPath, ...] = ()
    require: Mapping[str, str] = field(default_factory=dict)

    def host(self, name: str) -> Host:
        """The host of that name. Raises KeyError."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise KeyError(name)

    def groups_of(self, name: str) -> list[str]:
        """The groups that the host of that name is in, in the order of the file."""
        return [group for group, hosts in self.groups.items() if name in hosts]

    def names(self) -> Iterable[str]:
        return [host.name for host in self.hosts]
