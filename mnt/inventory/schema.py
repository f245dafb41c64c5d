"""The shape of an inventory file; docs/inventory.md explains every key.

The models take the leaves that `mnt.inventory.document` gives, and hold what a file says and nothing else.
`given()` tells what that is: a None may be written (`nic: null`) or be left out. The defaults are those of
`mnt.inventory.model`; the precedence is the loader's.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from mnt.inventory import values
from mnt.inventory.document import is_null
from mnt.inventory.spelling import did_you_mean

UNKNOWN_KEY = "unknown_key"

# Of NCCL_DEBUG_SUBSYS, in the user guide of NCCL 2.30.
NCCL_SUBSYSTEMS = (
    *("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "CALL", "PROXY", "NVLS"),
    *("BOOTSTRAP", "REG", "PROFILE", "RAS", "ALL"),
)


def _mapping(value: Any) -> dict[str, Any]:
    """A mapping; nothing at all is an empty one, so that `node1:` and an emptied section stand."""
    if is_null(value):
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"expected a mapping, got {values.describe(value)}")
    return value


def _hosts(value: Any) -> dict[str, Any]:
    """The loader has made a mapping of a plain list."""
    if not is_null(value) and not isinstance(value, dict):
        raise ValueError(f"expected a mapping or a list of hostlists, got {values.describe(value)}")
    return _mapping(value)


def _sequence(value: Any) -> list[Any]:
    if is_null(value):
        return []
    if not isinstance(value, list):
        raise ValueError(f"expected a list, got {values.describe(value)}")
    return value


def _one_or_more(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _group(value: Any) -> dict[str, Any]:
    """`train: "node[1-3]"` and `train: [node1, node2]` are short for `train: {hosts: ..}`."""
    return value if isinstance(value, dict) else {"hosts": value}


class Section(BaseModel):
    """A mapping with known keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> dict[str, Any]:
        section = _mapping(value)
        for key in section:
            if key not in cls.model_fields:
                hint = did_you_mean(key, cls.model_fields)
                keys = ", ".join(cls.model_fields)
                raise PydanticCustomError(UNKNOWN_KEY, "{hint}", {"key": key, "hint": hint, "keys": keys})
        return section

    def given(self, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
        """What the file says here, by key."""
        return {key: getattr(self, key) for key in self.model_fields_set if key not in without}


Text = Annotated[str, BeforeValidator(values.text)]
Path = Annotated[str, BeforeValidator(values.host_path)]
Port = Annotated[int | None, BeforeValidator(values.optional(values.integer(1, 65535)))]
OptionalText = Annotated[str | None, BeforeValidator(values.optional(values.text))]
OptionalWord = Annotated[str | None, BeforeValidator(values.optional(values.word))]
OptionalHeadPath = Annotated[str | None, BeforeValidator(values.optional(values.head_path))]
OptionalInterface = Annotated[str | None, BeforeValidator(values.optional(values.interface))]
Hostlists = Annotated[
    tuple[Annotated[str, BeforeValidator(values.verbatim)], ...], BeforeValidator(_one_or_more)
]
Env = Annotated[
    dict[
        Annotated[str, BeforeValidator(values.variable_name)],
        Annotated[str, BeforeValidator(values.verbatim)],
    ],
    BeforeValidator(_mapping),
]


class SshSection(Section):
    user: OptionalWord = None
    port: Port = None
    identity: OptionalHeadPath = None
    known_hosts: Annotated[str | None, BeforeValidator(values.head_path)] = None
    config: OptionalHeadPath = None
    gateway: Annotated[str | None, BeforeValidator(values.optional(values.gateway))] = None
    host_keys: Annotated[str | None, BeforeValidator(values.one_of("accept-new", "strict"))] = None


class RdmaSection(Section):
    devices: Annotated[
        tuple[Annotated[str, BeforeValidator(values.rdma_device)], ...], BeforeValidator(_sequence)
    ] = ()
    gid_index: Annotated[int | str | None, BeforeValidator(values.gid_index)] = None
    gdr_level: Annotated[
        str | None, BeforeValidator(values.optional(values.one_of("LOC", "PIX", "PXB", "PHB", "SYS")))
    ] = None


class TuningSection(Section):
    """Limits and words are those of NCCL 2.30; mnt.network.tuning has the variables."""

    socket_nthreads: Annotated[int | None, BeforeValidator(values.optional(values.integer(1, 16)))] = None
    nsocks_perthread: Annotated[int | None, BeforeValidator(values.optional(values.integer(1, 64)))] = None
    buffer_size: Annotated[int | None, BeforeValidator(values.optional(values.integer(4096, 2**31 - 1)))] = (
        None
    )
    p2p_level: Annotated[
        str | None, BeforeValidator(values.optional(values.one_of("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")))
    ] = None
    cross_nic: Annotated[int | None, BeforeValidator(values.optional(values.integer(0, 2)))] = None
    topo_file: Annotated[str | None, BeforeValidator(values.optional(values.absolute_path))] = None
    debug: Annotated[
        str | None, BeforeValidator(values.optional(values.one_of("VERSION", "WARN", "INFO", "TRACE")))
    ] = None
    debug_subsys: Annotated[
        tuple[Annotated[str, BeforeValidator(values.one_of(*NCCL_SUBSYSTEMS))], ...],
        BeforeValidator(_sequence),
    ] = ()
    ib_timeout: Annotated[int | None, BeforeValidator(values.optional(values.integer(1, 31)))] = None
    ib_retry_count: Annotated[int | None, BeforeValidator(values.optional(values.integer(0, 7)))] = None
    ib_traffic_class: Annotated[int | None, BeforeValidator(values.optional(values.integer(0, 255)))] = None
    ib_service_level: Annotated[int | None, BeforeValidator(values.optional(values.integer(0, 15)))] = None
    ib_qps_per_connection: Annotated[int | None, BeforeValidator(values.optional(values.integer(1, 128)))] = (
        None
    )


class NodeNetworkSection(Section):
    """What of the training network may differ between hosts."""

    rdma: RdmaSection = RdmaSection()
    tuning: TuningSection = TuningSection()
    exclude: Annotated[
        tuple[Annotated[str, BeforeValidator(values.device_pattern)], ...], BeforeValidator(_sequence)
    ] = ()


class Settings(Section):
    """What can be said for all hosts, for a group and for a host."""

    python: Annotated[tuple[str, ...] | None, BeforeValidator(values.interpreter)] = None
    workdir: Annotated[str | None, BeforeValidator(values.host_path)] = None
    jobs_dir: Annotated[str | None, BeforeValidator(values.host_path)] = None
    gpus: Annotated[int | None, BeforeValidator(values.integer(0, 1024))] = None
    nic: OptionalInterface = None
    env: Env = {}
    keep: Annotated[
        tuple[Annotated[str, BeforeValidator(values.directory_name)], ...], BeforeValidator(_sequence)
    ] = ()
    network: NodeNetworkSection = NodeNetworkSection()


class LoginSettings(Settings):
    ssh: SshSection = SshSection()

    def login(self) -> dict[str, Any]:
        """What the file says here about logging in."""
        return self.ssh.given()


class GroupSettings(LoginSettings):
    hosts: Hostlists


class HostSettings(LoginSettings):
    address: Annotated[tuple[str, int | None] | None, BeforeValidator(values.address)] = None

    @model_validator(mode="after")
    def _one_port(self) -> HostSettings:
        if self.address and self.address[1] and self.ssh.port not in (None, self.address[1]):
            raise ValueError(f"address says port {self.address[1]}, and ssh says port {self.ssh.port}")
        return self

    def login(self) -> dict[str, Any]:
        port = self.address[1] if self.address else None
        return self.ssh.given() | ({"port": port} if port else {})


class NetworkSection(NodeNetworkSection):
    mode: Annotated[str | None, BeforeValidator(values.one_of("tcp", "rdma", "auto"))] = None
    subnet: Annotated[str | None, BeforeValidator(values.optional(values.subnet))] = None
    nic: OptionalInterface = None
    master_port: Annotated[int | None, BeforeValidator(values.integer(1024, 65535))] = None


class MountSection(Section):
    path: Path
    type: OptionalText = None
    source: OptionalText = None
    options: Annotated[tuple[Text, ...], BeforeValidator(_sequence)] = ()


class PathSection(Section):
    path: Path
    kind: Annotated[str | None, BeforeValidator(values.one_of("file", "dir", "any"))] = None


class InventoryFile(Section):
    """A whole file."""

    cluster: OptionalText = None
    ssh: SshSection = SshSection()
    defaults: Settings = Settings()
    hosts: Annotated[dict[str, HostSettings], BeforeValidator(_hosts)]
    groups: Annotated[
        dict[str, Annotated[GroupSettings, BeforeValidator(_group)]], BeforeValidator(_mapping)
    ] = {}
    network: NetworkSection = NetworkSection()
    storage: Annotated[tuple[MountSection, ...], BeforeValidator(_sequence)] = ()
    paths: Annotated[tuple[PathSection, ...], BeforeValidator(_sequence)] = ()
    require: Annotated[
        dict[
            Annotated[str, BeforeValidator(values.package_name)],
            Annotated[str, BeforeValidator(values.specifier)],
        ],
        BeforeValidator(_mapping),
    ] = {}
    env: Env = {}
