"""The RDMA ports that a host trains with, and the GID of each. Pure.

The devices are those that the inventory names; else those that carry the training NIC; else, if there are
none, all active devices, which then must be of one kind. A job never mixes InfiniBand and RoCE ports.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from mnt.facts.host import Interface
from mnt.facts.rdma import ETHERNET, INFINIBAND, Device, Gid, Port, RdmaFacts
from mnt.inventory.model import Host
from mnt.network import gid
from mnt.network.nic import NicChoice, Obstacle

_Ports = list[tuple[Device, str, Port]]  # device, label, port


@dataclass(frozen=True)
class Hca:
    """A port used for training."""

    label: str  # for NCCL_IB_HCA: `mlx5_6`, or `mlx5_6:2`
    port: Port
    gid: Gid | None  # None on InfiniBand
    reason: str


class RdmaProblem(Obstacle):
    """Why a host cannot train over RDMA."""


class _Unfit(Exception):
    def __init__(self, message: str, candidates: Iterable[object], fix: str) -> None:
        super().__init__(message)
        self.problem = RdmaProblem(message, tuple(map(str, candidates)), fix)


@dataclass(frozen=True)
class HostContext:
    """The facts and settings of a host that decide which ports and GIDs to use."""

    rdma: RdmaFacts
    host: Host
    nic: NicChoice
    interfaces: Sequence[Interface]
    subnet: str | None = None  # network.subnet

    @property
    def carrying(self) -> tuple[Device, ...]:
        """The devices that carry the training NIC."""
        return self.rdma.carrying(self.nic.interface.name)


def choose_hcas(context: HostContext) -> tuple[Hca, ...] | RdmaProblem:
    """The ports that the host trains with; at least one."""
    try:
        named = context.host.rdma.devices
        ports = _named(context.rdma, named) if named else _by_rule(context)
        kinds = {port.link_layer for _, _, port in ports}
        if len(kinds) > 1:
            raise _Unfit(
                "InfiniBand and RoCE ports cannot train together",
                (f"{device.name} {port.link_layer}" for device, _, port in ports),
                "set network.rdma.devices to devices of one kind",
            )
        reason = "inventory: network.rdma.devices" if named else _reason(context, ports)
        return tuple(Hca(label, port, _gid(context, device, port), reason) for device, label, port in ports)
    except _Unfit as unfit:
        return unfit.problem


def _named(facts: RdmaFacts, devices: Sequence[str]) -> _Ports:
    """The active ports of the devices that the inventory names; each device must have one."""
    ports: _Ports = []
    for label in devices:
        name, _, number = label.partition(":")
        device = facts.device(name)
        if device is None:
            raise _Unfit(f"there is no RDMA device {name}", facts.devices, "correct network.rdma.devices")
        named = [port for port in device.ports if not number or port.number == int(number)]
        if not named:
            raise _Unfit(f"{name} has no port {number}", [device], "correct network.rdma.devices")
        ports += _active(device, named, label)
    return ports


def _by_rule(context: HostContext) -> _Ports:
    nic, facts = context.nic.interface.name, context.rdma
    if not facts.devices:
        raise _Unfit("there is no RDMA device", (), "set network.mode to tcp, or load the NIC's RDMA driver")
    allowed = [
        device
        for device in facts.devices
        if not any(fnmatchcase(device.name, pattern) for pattern in context.host.exclude)
    ]
    carrying = [device for device in context.carrying if device in allowed]
    if carrying:
        return [entry for device in carrying for entry in _active(device, _of_nic(device, nic), None)]
    active = [
        device for device in allowed if device.usable is not False and any(p.active for p in device.ports)
    ]
    if not active:
        raise _Unfit("no RDMA port is active", allowed, "check the cables and the switch: ibstat")
    return [entry for device in active for entry in _active(device, device.ports, None)]


def _of_nic(device: Device, nic: str) -> Sequence[Port]:
    """The ports that belong to a NIC; all ports if the GIDs do not show it."""
    return [port for port in device.ports if port.has_netdev(nic)] or device.ports


def _active(device: Device, ports: Sequence[Port], label: str | None) -> _Ports:
    """The active ports among `ports`, with their labels."""
    if device.usable is False:
        raise _Unfit(
            f"the user who logs in has no access to {device.name}",
            (),
            "give the user read and write access to /dev/infiniband/uverbs*",
        )
    active = [port for port in ports if port.active]
    if not active:
        raise _Unfit(
            f"no port of {device.name} is active", [device], "check the cable and the switch: ibstat"
        )
    for port in active:
        if port.link_layer not in (INFINIBAND, ETHERNET):
            raise _Unfit(
                f"{device.name} is neither InfiniBand nor RoCE",
                [port.link_layer],
                "set network.rdma.devices to other devices",
            )
    single = len(device.ports) == 1
    return [(device, label or (device.name if single else f"{device.name}:{p.number}"), p) for p in active]


def _reason(context: HostContext, ports: _Ports) -> str:
    names = {device.name for device, _, _ in ports}
    nic = context.nic.interface.name
    if not names & {device.name for device in context.carrying}:
        return f"every active port; none of them carries {nic}"
    others = [
        device.name
        for device in context.rdma.devices
        if device.name not in names and any(port.active for port in device.ports)
    ]
    idle = f"; also active, but not named in the inventory: {', '.join(others)}" if others else ""
    return f"carries {nic}{idle}"


def _gid(context: HostContext, device: Device, port: Port) -> Gid | None:
    """The GID of a RoCE port: version 2, and the IPv4 address of its own interface; None on InfiniBand."""
    if port.link_layer == INFINIBAND:
        return None
    if context.host.rdma.gid_index != "auto":
        return _gid_at(device, port, context.host.rdma.gid_index)
    found = gid.candidates(port.gids, _addresses(context, device, port))
    if len(found) > 1 and context.subnet is not None:
        subnet = ipaddress.ip_network(context.subnet)
        found = [each for each in found if ipaddress.ip_address(each.ipv4 or "") in subnet] or found
    if len(found) == 1:
        return found[0]
    what = "several RoCE v2 GIDs" if found else "no RoCE v2 GID"
    raise _Unfit(
        f"{device.name} port {port.number} has {what} for an IPv4 address of its interface",
        found or port.gids,
        "set network.subnet, or network.rdma.gid_index for this host"
        if found
        else "configure an IPv4 address on the interface of the device",
    )


def _gid_at(device: Device, port: Port, index: int | str) -> Gid:
    for each in port.gids:
        if each.index == index and each.roce_v2:
            return each
    raise _Unfit(
        f"{device.name} port {port.number} has no RoCE v2 GID at index {index}",
        port.gids,
        "correct network.rdma.gid_index, or set it to auto",
    )


def _addresses(context: HostContext, device: Device, port: Port) -> Mapping[str, Sequence[str]]:
    """By interface, the addresses whose GIDs the port may use; on the training NIC only its own address."""
    nic = context.nic.interface.name
    if port.has_netdev(nic) or (len(device.ports) == 1 and device in context.carrying):
        return {nic: [context.nic.address]}
    return {
        interface.name: interface.addresses
        for interface in context.interfaces
        if port.has_netdev(interface.name)
    }
