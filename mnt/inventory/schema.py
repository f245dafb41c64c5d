"""The shape of an inventory file; docs/inventory.md explains every key.

The classes define the valid values of a file; msgspec checks the file by them. A default only makes a key
optional: the real defaults are in mnt.inventory.model, and the precedence of settings is in the loader.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from mnt.inventory.model import Mount, Rdma, RequiredPath, Section, Tuning, Ulimit
from mnt.inventory.values import (
    Address,
    AsWritten,
    DevicePattern,
    Directory,
    Gateway,
    HeadPath,
    HostPath,
    Interface,
    Interpreter,
    PackageName,
    ShellLines,
    Subnet,
    Text,
    UserName,
    VariableName,
    Versions,
    Word,
)

Env = dict[VariableName, AsWritten]
Hostlists = AsWritten | tuple[AsWritten, ...]


class SshSection(Section, frozen=True):
    user: Word | None = None
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    identity: HeadPath | None = None
    known_hosts: HeadPath = ""
    config: HeadPath | None = None
    gateway: Gateway | None = None
    host_keys: Literal["accept-new", "strict"] = "accept-new"
    mesh: Literal["optional", "required"] = "optional"


class NodeNetworkSection(Section, frozen=True):
    """Settings of the training network that may differ between hosts."""

    rdma: Rdma = Rdma()
    tuning: Tuning = Tuning()
    exclude: tuple[DevicePattern, ...] = ()


class Settings(Section, frozen=True):
    """Settings for all hosts, for a group, or for a host."""

    python: Interpreter = Interpreter("python3")
    python_owner: UserName | None = None
    workdir: HostPath = ""
    workdir_group: Text | None = None
    jobs_dir: HostPath = ""
    gpus: Annotated[int, Meta(ge=0, le=1024)] = 0
    slots: Annotated[int, Meta(ge=1, le=1024)] | None = None
    activate: ShellLines = ShellLines([])
    nic: Interface | None = None
    ulimit: Ulimit = Ulimit()
    env: Env = field(default_factory=dict)
    keep: tuple[Directory, ...] = ()
    network: NodeNetworkSection = NodeNetworkSection()


class LoginSettings(Settings, frozen=True):
    ssh: SshSection = SshSection()


class GroupSettings(LoginSettings, frozen=True, kw_only=True):
    hosts: Hostlists


class HostSettings(LoginSettings, frozen=True):
    address: Address | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.address and self.address.port and self.ssh.port not in (None, self.address.port):
            raise ValueError(f"address says port {self.address.port}, and ssh says port {self.ssh.port}")


class NetworkSection(NodeNetworkSection, frozen=True):
    mode: Literal["tcp", "rdma", "auto"] = "auto"
    subnet: Subnet | None = None
    nic: Interface | None = None
    master_port: Annotated[int, Meta(ge=1024, le=65535)] = 1024


class SecretSection(Section, frozen=True):
    file: HeadPath | None = None
    env: VariableName | None = None
    command: tuple[AsWritten, ...] = ()

    def __post_init__(self) -> None:
        if [self.file is None, self.env is None, not self.command].count(False) != 1:
            raise ValueError("exactly one of them")


class InventoryFile(Section, frozen=True, kw_only=True):
    """A whole file."""

    cluster: Text | None = None
    ssh: SshSection = SshSection()
    defaults: Settings = Settings()
    hosts: dict[str, HostSettings] | tuple[AsWritten, ...]
    groups: dict[str, Hostlists | GroupSettings] = field(default_factory=dict)
    network: NetworkSection = NetworkSection()
    storage: tuple[Mount, ...] = ()
    paths: tuple[RequiredPath, ...] = ()
    require: dict[PackageName, Versions] = field(default_factory=dict)
    secrets: dict[VariableName, SecretSection] = field(default_factory=dict)
    env: Env = field(default_factory=dict)
    setup: dict[VariableName, AsWritten] = field(default_factory=dict)
