"""The inventory for the rest of `mnt`: plain, frozen, resolved values.

The loader makes them from a YAML file; no other code depends on the form of the file. Every `Host` has its
own final settings (cluster < group < host), so nobody has to merge anything. A `Section` has the same form as
in the file; its types are the valid values (mnt.inventory.schema has the other sections).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

from msgspec import Meta, Struct

from mnt.inventory.values import AbsolutePath, HostPath, RdmaDevice, Text
from mnt.remote.common.containers import kind_of


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping with known keys."""


@dataclass(frozen=True)
class Ssh:
    """How to log in. None: as in the user's ssh_config, else OpenSSH's default."""

    user: str | None = None
    port: int | None = None
    identity: str | None = None  # path, with `~` not expanded
    known_hosts: str = "~/.ssh/known_hosts"
    config: str | None = "~/.ssh/config"  # an ssh_config file; None: read none
    gateway: str | None = None  # [user@]host[:port], or several of them with commas, as in ProxyJump
    host_keys: str = "accept-new"  # or "strict"
    mesh: str = "optional"  # or "required": logins between the nodes, which `mnt` itself never needs
    # For messages: `identity` as the inventory names it, and FILE:LINE.
    named_at: tuple[str, str] | None = field(default=None, compare=False)


class Rdma(Section, frozen=True):
    """The RDMA devices for training, and their settings. Empty or `auto`: chosen by `mnt.network.hca`."""

    devices: tuple[RdmaDevice, ...] = ()
    gid_index: Literal["auto"] | Annotated[int, Meta(ge=0, le=255)] = "auto"
    gdr_level: Literal["LOC", "PIX", "PXB", "PHB", "SYS"] | None = None


# The values of NCCL_DEBUG_SUBSYS in the user guide of NCCL 2.30.
Subsystem = (
    Literal["INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "CALL", "PROXY", "NVLS"]
    | Literal["BOOTSTRAP", "REG", "PROFILE", "RAS", "ALL"]
)


class Tuning(Section, frozen=True):
    """Settings of NCCL beyond those that `mnt` computes. None or (): NCCL's default.

    Limits and words are those of NCCL 2.30; mnt.network.env has the variables.
    """

    socket_nthreads: Annotated[int, Meta(ge=1, le=16)] | None = None
    nsocks_perthread: Annotated[int, Meta(ge=1, le=64)] | None = None
    buffer_size: Annotated[int, Meta(ge=4096, le=2**31 - 1)] | None = None  # bytes
    p2p_level: Literal["LOC", "NVL", "PIX", "PXB", "PHB", "SYS"] | None = None
    cross_nic: Annotated[int, Meta(ge=0, le=2)] | None = None
    topo_file: AbsolutePath | None = None  # on the host
    debug: Literal["VERSION", "WARN", "INFO", "TRACE"] | None = None
    debug_subsys: tuple[Subsystem, ...] = ()
    ib_timeout: Annotated[int, Meta(ge=1, le=31)] | None = None  # 4.096 us x 2^n
    ib_retry_count: Annotated[int, Meta(ge=0, le=7)] | None = None
    ib_traffic_class: Annotated[int, Meta(ge=0, le=255)] | None = None
    ib_service_level: Annotated[int, Meta(ge=0, le=15)] | None = None
    ib_qps_per_connection: Annotated[int, Meta(ge=1, le=128)] | None = None


Limit = Literal["unlimited"] | Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Ulimit(Section, frozen=True):
    """Soft limits of a job's processes, as setrlimit(2) has them: bytes, or a number. None: the session's."""

    memlock: Limit | None = None
    nofile: Limit | None = None
    stack: Limit | None = None
    nproc: Limit | None = None
    core: Limit | None = None

    @property
    def numbers(self) -> dict[str, int]:
        """Those that are set, by name; -1 for unlimited."""
        set_ = {name: getattr(self, name) for name in self.__struct_fields__}
        return {
            name: -1 if value == "unlimited" else value for name, value in set_.items() if value is not None
        }


ANYBODY = "*"  # in place of a user; no inventory can say it


@dataclass(frozen=True)
class Host:
    """One bare-metal host, with the settings that hold for it."""

    name: str
    address: str  # for SSH; the name, unless the inventory has another
    ssh: Ssh = field(default_factory=Ssh)
    python: tuple[str, ...] = ("python3",)  # argv prefix of the interpreter that trains
    activate: tuple[str, ...] = ()  # lines for bash that make the environment of jobs
    python_owner: str | None = None  # the user of the host who may have made it; ANYBODY: all may
    workdir: str = "~/mnt"
    workdir_group: str | None = None  # the Unix group that shares the workdir
    jobs_dir: str = "~/.mnt/jobs"
    gpus: int = 0
    own_slots: int | None = None  # `slots` of the inventory; None: one per GPU
    chosen: tuple[int, ...] | None = None  # the numbers of the selected slots (`node1:0,1`); None: all
    nic: str | None = None  # training NIC; None: chosen by mnt.network.nic
    env: Mapping[str, str] = field(default_factory=dict)  # cluster < group < host, merged
    keep: tuple[str, ...] = ("outputs",)  # directories of `shared/` that are linked into every release
    rdma: Rdma = field(default_factory=Rdma)
    tuning: Tuning = field(default_factory=Tuning)
    ulimit: Ulimit = field(default_factory=Ulimit)
    exclude: tuple[str, ...] = ()  # patterns of NICs and RDMA devices that are used only if named

    @property
    def slots(self) -> int:
        """Processes to start here by default: one per GPU; one if there is none."""
        return (self.own_slots or max(1, self.gpus)) if self.chosen is None else len(self.chosen)

    @property
    def trains_elsewhere(self) -> bool:
        """Whether the interpreter that trains cannot run the programs of `mnt` as it is."""
        return self.in_container or (bool(self.activate) and "/" not in self.python[0])

    @property
    def in_container(self) -> bool:
        """Whether `python` starts a container."""
        return len(self.python) > 1 and kind_of(self.python) is not None

    @property
    def all_slots(self) -> range:
        """The numbers of the slots that can be selected: those of its GPUs, if it has any."""
        return range(self.gpus or self.own_slots or 1)


@dataclass(frozen=True)
class Network:
    """Settings of the whole training network; each `Host` has those that may differ between hosts."""

    mode: str = "auto"  # tcp, rdma or auto
    subnet: str | None = None  # CIDR of the training network
    nic: str | None = None
    master_port: int = 29500
    port_by_option: bool = False  # whether `--master-port` has set the port
    mode_by_option: bool = False  # whether `--mode` on the command line has set it


@dataclass(frozen=True)
class SecretSource:
    """Where the head gets the value of a secret; exactly one is given. `mnt.launch.secret` reads it."""

    file: str | None = None  # path, with `~` not expanded
    env: str | None = None  # a variable of whoever launches
    command: tuple[str, ...] = ()  # an argv, which prints the value
    line: int | None = None  # in the inventory's file

    @property
    def kind(self) -> str:
        return "file" if self.file is not None else "env" if self.env is not None else "command"


class Mount(Section, frozen=True):
    """A mount that every host must have. None: any value is accepted."""

    path: HostPath
    type: Text | None = None
    source: Text | None = None
    options: tuple[Text, ...] = ()


class RequiredPath(Section, frozen=True):
    path: HostPath
    kind: Literal["file", "dir", "any"] = "any"


@dataclass(frozen=True)
class Inventory:
    """A cluster. `hosts` is in the order of the file, which is the rank order."""

    cluster: str
    file: str
    hosts: tuple[Host, ...]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    storage: tuple[Mount, ...] = ()
    paths: tuple[RequiredPath, ...] = ()
    require: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, SecretSource] = field(default_factory=dict)  # by variable, on every host
    setup: Mapping[str, str] = field(default_factory=dict)  # variables for the playbooks of `mnt setup`

    def host(self, name: str) -> Host:
        """The host of that name. Raises KeyError."""
        return self._by_name[name]

    def groups_of(self, name: str) -> list[str]:
        """The groups that the host of that name is in, in the order of the file."""
        return self._groups_by_host.get(name, [])

    def names(self) -> Iterable[str]:
        return [host.name for host in self.hosts]

    @cached_property
    def _by_name(self) -> dict[str, Host]:
        return {host.name: host for host in self.hosts}

    @cached_property
    def _groups_by_host(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for group, hosts in self.groups.items():
            for name in hosts:
                found.setdefault(name, []).append(group)
        return found
