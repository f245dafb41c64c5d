"""Which RDMA ports of a host train, and which GID each uses. Pure.

The devices that the inventory names; else those that carry the training NIC; else, where none does, every
active one, if all of them are of one kind. Ports of InfiniBand and of RoCE never train together.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from mnt.facts.host import Interface
from mnt.facts.rdma import ETHERNET, INFINIBAND, Device, Gid, Port, RdmaFacts
from mnt.inventory.model import Rdma
from mnt.network import gid
from mnt.network.nic import NicChoice

Addresses = Mapping[str, Sequence[str]]
_Ports = list[tuple[Device, str, Port]]  # device, label, port


@dataclass(frozen=True)
class Hca:
    """A port that trains."""

    label: str  # as NCCL_IB_HCA takes it: `mlx5_6`, or `mlx5_6:2`
    port: Port
    gid: Gid | None  # None on InfiniBand
    reason: str

    @property
    def link_layer(self) -> str | None:
        return self.port.link_layer


@dataclass(frozen=True)
class RdmaProblem:
    """Why a host cannot train over RDMA, and what is there instead."""

    message: str
    listed: tuple[str, ...]
    fix: str

    def __str__(self) -> str:
        return self.message + (f" (there: {', '.join(self.listed)})" if self.listed else "")


class _Unfit(Exception):
    def __init__(self, message: str, listed: Iterable[object], fix: str) -> None:
        super().__init__(message)
        self.problem = RdmaProblem(message, tuple(map(str, listed)), fix)


@dataclass(frozen=True)
class Surroundings:
    """What tells which ports and GIDs of a host are meant."""

    nic: NicChoice
    interfaces: Sequence[Interface]
    subnet: str | None = None  # network.subnet
    exclude: Sequence[str] = ()  # patterns of devices that are never taken unless named


def choose_hcas(facts: RdmaFacts, told: Rdma, around: Surroundings) -> tuple[Hca, ...] | RdmaProblem:
    """The ports that train on a host; at least one."""
    try:
        ports = _named(facts, told.devices) if told.devices else _by_rule(facts, around)
        kinds = {port.link_layer for _, _, port in ports}
        if len(kinds) > 1:
            raise _Unfit(
                "ports of InfiniBand and of RoCE cannot train together",
                (f"{device.name} {port.link_layer}" for device, _, port in ports),
                "name those of one kind in network.rdma.devices",
            )
        reason = _reason(told, ports, facts, around)
        return tuple(
            Hca(label, port, _gid(facts, device, port, told.gid_index, around), reason)
            for device, label, port in ports
        )
    except _Unfit as unfit:
        return unfit.problem


def _named(facts: RdmaFacts, devices: Sequence[str]) -> _Ports:
    """The active ports of the devices that the inventory names: each must have one."""
    ports: _Ports = []
    for label in devices:
        name, _, number = label.partition(":")
        device = facts.device(name)
        if device is None:
            raise _Unfit(f"there is no RDMA device {name}", facts.devices, "mend network.rdma.devices")
        wanted = [port for port in device.ports if not number or port.number == int(number)]
        if not wanted:
            raise _Unfit(f"{name} has no port {number}", [device], "mend network.rdma.devices")
        ports += _fit(device, wanted, label)
    return ports


def _by_rule(facts: RdmaFacts, around: Surroundings) -> _Ports:
    nic = around.nic.interface.name
    if not facts.devices:
        raise _Unfit("there is no RDMA device", (), "set network.mode to tcp, or load the NIC's RDMA driver")
    free = [device for device in facts.devices if not _excluded(device.name, around.exclude)]
    carrying = [device for device in facts.carrying(nic) if device in free]
    if carrying:
        return [entry for device in carrying for entry in _fit(device, _of_nic(device, nic), None)]
    active = [device for device in free if device.usable is not False and any(p.active for p in device.ports)]
    if not active:
        raise _Unfit("no RDMA port is active", free, "look at the cables and the switch: ibstat")
    return [entry for device in active for entry in _fit(device, device.ports, None)]


def _of_nic(device: Device, nic: str) -> Sequence[Port]:
    """The ports that a NIC belongs to; all, where the GIDs do not tell."""
    return [port for port in device.ports if port.has_netdev(nic)] or device.ports


def _fit(device: Device, ports: Sequence[Port], label: str | None) -> _Ports:
    """The active ones of a device's ports, with their labels."""
    if device.usable is False:
        raise _Unfit(
            f"the user who logs in may not open {device.name}",
            (),
            "give the user read and write access to /dev/infiniband/uverbs*",
        )
    active = [port for port in ports if port.active]
    if not active:
        raise _Unfit(
            f"no port of {device.name} is active", [device], "look at the cable and the switch: ibstat"
        )
    for port in active:
        if port.link_layer not in (INFINIBAND, ETHERNET):
            raise _Unfit(f"{device.name} is neither InfiniBand nor RoCE", [port.link_layer], "name another")
    single = len(device.ports) == 1
    return [(device, label or (device.name if single else f"{device.name}:{p.number}"), p) for p in active]


def _excluded(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _reason(told: Rdma, ports: _Ports, facts: RdmaFacts, around: Surroundings) -> str:
    if told.devices:
        return "inventory: network.rdma.devices"
    names = {device.name for device, _, _ in ports}
    nic = around.nic.interface.name
    if not names & {device.name for device in facts.carrying(nic)}:
        return f"every active port; none of them carries {nic}"
    others = [d.name for d in facts.devices if d.name not in names and any(p.active for p in d.ports)]
    idle = f"; active too, and not named in the inventory: {', '.join(others)}" if others else ""
    return f"carries {nic}{idle}"


def _gid(facts: RdmaFacts, device: Device, port: Port, told: int | str, around: Surroundings) -> Gid | None:
    """The GID of a RoCE port: version 2, and the IPv4 address of its own interface; None on InfiniBand."""
    if port.link_layer == INFINIBAND:
        return None
    if told != "auto":
        return _gid_at(device, port, told)
    found = gid.candidates(port.gids, _addresses(facts, device, port, around))
    if len(found) > 1 and around.subnet is not None:
        subnet = ipaddress.ip_network(around.subnet)
        found = [each for each in found if ipaddress.ip_address(each.ipv4 or "") in subnet] or found
    if len(found) == 1:
        return found[0]
    what = "several GIDs" if found else "no GID"
    raise _Unfit(
        f"{device.name} port {port.number} has {what} of RoCE v2 for an IPv4 address of its interface",
        found or port.gids,
        "set network.subnet, or network.rdma.gid_index for this host"
        if found
        else "give the interface of the device an IPv4 address",
    )


def _gid_at(device: Device, port: Port, index: int | str) -> Gid:
    for each in port.gids:
        if each.index == index and each.roce_v2:
            return each
    raise _Unfit(
        f"{device.name} port {port.number} has no GID of RoCE v2 at index {index}",
        port.gids,
        "mend network.rdma.gid_index, or let it be auto",
    )


def _addresses(facts: RdmaFacts, device: Device, port: Port, around: Surroundings) -> Addresses:
    """By interface, the addresses that may name a port: of one that carries the training NIC, only its."""
    nic = around.nic.interface.name
    if port.has_netdev(nic) or (len(device.ports) == 1 and device in facts.carrying(nic)):
        return {nic: [around.nic.address]}
    return {
        interface.name: [address.split("/")[0] for address in interface.ipv4]
        for interface in around.interfaces
        if port.has_netdev(interface.name)
    }
