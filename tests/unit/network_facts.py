"""Short ways to write down what hosts say of their networks."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts, Interface
from mnt.facts.rdma import Device, Gid, Port, RdmaFacts
from mnt.inventory.model import Host, Inventory, Network
from mnt.network.decision import NetworkDecision, decide
from mnt.network.nic import NicProblem

V1, V2 = "IB/RoCE v1", "RoCE v2"


def nic(
    name: str, *ipv4: str, v6: Sequence[str] = (), up: bool = True, carrier: bool | None = True
) -> Interface:
    return Interface(name, up=up, carrier=carrier, mtu=1500, ipv4=ipv4, ipv6=tuple(v6), loopback=name == "lo")


LO = nic("lo", "127.0.0.1/8", v6=["::1/128"])
DOCKER = nic("docker0", "172.17.0.1/16")


def gid(index: int, address: str, netdev: str | None, type: str | None = V2) -> Gid:
    """A GID as sysfs writes it: of an IPv4 (mapped) or IPv6 address."""
    text = f"::ffff:{address}" if "." in address else address
    return Gid(index, ipaddress.IPv6Address(text).exploded, type, netdev)


def table(netdev: str, *addresses: str, first: int = 0) -> list[Gid]:
    """What an mlx5 port holds: link-local and then each IPv4, version 1 and 2 of each, from `first` on."""
    every = ["fe80::1", *addresses]
    slots = [(address, type) for address in every for type in (V1, V2)]
    return [gid(first + i, address, netdev, type) for i, (address, type) in enumerate(slots)]


def roce(
    name: str, netdev: str | None, gids: Sequence[Gid], *, state: str = "ACTIVE", **device: Any
) -> Device:
    port = Port(1, state, "LinkUp" if state == "ACTIVE" else "Polling", "Ethernet", 400.0, tuple(gids))
    return Device(name, netdevs=(netdev,) if netdev else (), ports=(port,), **device)


def infiniband(name: str, netdev: str | None = None, *, state: str = "ACTIVE", **device: Any) -> Device:
    local = Gid(0, "fe80:0000:0000:0000:0c42:a103:0065:1234", V1)
    port = Port(1, state, "LinkUp" if state == "ACTIVE" else "Polling", "InfiniBand", 400.0, (local,))
    return Device(name, netdevs=(netdev,) if netdev else (), ports=(port,), **device)


def host(
    *interfaces: Interface,
    hcas: Sequence[Device] = (),
    lowers: Mapping[str, tuple[str, ...]] | None = None,
    nccl: str | None = "2.28.9",
    **facts: Any,
) -> HostFacts:
    return HostFacts(
        "host",
        interfaces=interfaces,
        rdma=RdmaFacts(tuple(hcas), lowers or {}),
        nccl_library=nccl,
        **facts,
    )


def decision(
    facts: Mapping[str, HostFacts], settings: Mapping[str, Mapping[str, Any]] | None = None, **network: Any
) -> tuple[NetworkDecision, tuple[Host, ...]]:
    """What is decided for hosts of these names; `settings` are further arguments of each `Host`."""
    hosts = tuple(Host(name, name, **(settings or {}).get(name, {})) for name in facts)
    inventory = Inventory("c", "c.yaml", hosts, network=Network(**network))
    return decide(FleetFacts(inventory, hosts, facts)), hosts


def environments(decided: NetworkDecision) -> dict[str, dict[str, str] | str]:
    """By host the variables, or `! why there are none`."""
    found: dict[str, dict[str, str] | str] = {}
    for name, node in decided.nodes.items():
        if isinstance(node.nic, NicProblem):
            found[name] = f"! {node.nic.message}"
        elif node.problem is not None:
            found[name] = f"! {node.problem.message}"
        else:
            found[name] = {variable.name: variable.value for variable in node.variables}
    return found
