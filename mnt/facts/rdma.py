"""The RDMA devices of a host, typed. `mnt/remote/probe/rdma.py` reads them from sysfs."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from mnt.tasks.shape import Count, DeviceName, Rate, Short

INFINIBAND = "InfiniBand"
ETHERNET = "Ethernet"  # RDMA over Ethernet is RoCE

_ROCE_V2 = "RoCE v2"  # compare the whole text: the type of version 1, `IB/RoCE v1`, also contains "RoCE"


@dataclass(frozen=True)
class Gid:
    """A used entry of a port's GID table."""

    index: Count
    gid: Short  # eight groups of four hexadecimal digits
    type: str | None = None  # `RoCE v2` or `IB/RoCE v1`; None: the kernel does not report it
    netdev: DeviceName | None = None  # the interface whose address the GID is built from

    @property
    def ipv6(self) -> ipaddress.IPv6Address | None:
        """The GID as an IPv6 address; None if it is not one."""
        try:
            return ipaddress.IPv6Address(self.gid)
        except ValueError:
            return None

    @property
    def ipv4(self) -> str | None:
        """The IPv4 address, if the GID is an IPv4-mapped address."""
        mapped = self.ipv6.ipv4_mapped if self.ipv6 else None
        return str(mapped) if mapped else None

    @property
    def roce_v2(self) -> bool:
        return self.type == _ROCE_V2

    def __str__(self) -> str:
        address = self.ipv4 or str(self.ipv6 or self.gid)
        return f"{self.index}: {address} {self.type or 'of unknown type'} {self.netdev or 'without netdev'}"


@dataclass(frozen=True)
class Port:
    """A port of an RDMA device. None: the kernel does not report it."""

    number: Count  # from 1
    state: str | None = None  # ACTIVE, DOWN, INIT, ARMED
    phys_state: str | None = None  # LinkUp, Polling, Disabled
    link_layer: str | None = None  # INFINIBAND or ETHERNET
    rate: Rate | None = None  # Gbit/s
    gids: tuple[Gid, ...] = ()  # in order of their indices; empty entries are left out

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"

    @property
    def kind(self) -> str:
        """For people."""
        return "InfiniBand" if self.link_layer == INFINIBAND else "RoCE"

    def has_netdev(self, name: str) -> bool:
        """Whether a GID is built from an address of that interface."""
        return any(gid.netdev == name for gid in self.gids)

    def __str__(self) -> str:
        state = f"{self.state or 'in an unknown state'}"
        return f"port {self.number} {state}" + (f" ({self.phys_state})" if self.phys_state else "")


@dataclass(frozen=True)
class Device:
    """An RDMA device, or HCA: `mlx5_0`."""

    name: DeviceName
    netdevs: tuple[DeviceName, ...] = ()  # the Ethernet or IPoIB interfaces of the same hardware
    usable: bool | None = None  # whether the user who logs in may open it; None: there is no device file
    ports: tuple[Port, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {', '.join(map(str, self.ports)) or 'without ports'}"


@dataclass(frozen=True)
class RdmaFacts:
    """All RDMA devices of a host, in the order of their numbers. Having none is not an error."""

    devices: tuple[Device, ...] = ()
    lowers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # bond, VLAN -> interfaces under it
    peermem: bool = False  # nvidia_peermem or nv_peer_mem is loaded
    open_driver: bool | None = None  # NVIDIA's open kernel modules; None: no NVIDIA driver

    def device(self, name: str) -> Device | None:
        return next((device for device in self.devices if device.name == name), None)

    def carrying(self, nic: str) -> tuple[Device, ...]:
        """The devices that carry the traffic of a NIC, also through bonds and VLANs."""
        below = self._with_below(nic)
        return tuple(
            device
            for device in self.devices
            if below & {*device.netdevs} or any(port.has_netdev(nic) for port in device.ports)
        )

    def _with_below(self, nic: str) -> set[str]:
        """The interface, and all under it, even if the host says that they are under each other."""
        found, waiting = set(), [nic]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self.lowers.get(name, ())
        return found
