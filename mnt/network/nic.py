"""Which NIC carries the training traffic of each host. Pure.

The rule, first that applies:

1. the host's own `nic`;
2. the NIC whose address lies in `network.subnet`;
3. `network.nic`;
4. on the master the NIC by which every worker reaches it, and on a worker the NIC in the subnet of the
   master's training address.

What `network.exclude` names is no candidate in 2 and 4. Several candidates are never guessed between: they
are listed, and the inventory decides.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from mnt.facts.host import Interface
from mnt.inventory.model import Host, Inventory

# Bridges and pairs that containers and virtual machines leave on a host: never between hosts.
_VIRTUAL = re.compile(r"(docker|br-|veth|virbr|cni|flannel|cali|podman|lxc|lxd|tunl)")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class NicChoice:
    """The NIC of a host, its IPv4 address (no prefix length) and why it was taken."""

    interface: Interface
    address: str
    reason: str


@dataclass(frozen=True)
class NicProblem:
    """Why no NIC could be taken, and those that might have been meant (`name address`)."""

    message: str
    candidates: tuple[str, ...]
    fix: str
    ambiguous: bool = False  # each of the candidates would do
    waits_for: str | None = None  # the host whose problem it is, if that is another


def choose(
    inventory: Inventory, hosts: Sequence[Host], interfaces: Mapping[str, Sequence[Interface]]
) -> dict[str, NicChoice | NicProblem]:
    """The training NIC of every host that `interfaces` has facts of.

    Where no NIC leads from the master to every worker, that is the master's problem: the others are decided
    without it. Where several do, or there is one other host, the others are undecided until the master is.

    Args:
        inventory: gives `network.subnet` and `network.nic`.
        hosts: in rank order, the first is the master.
        interfaces: by host name; hosts whose facts are missing are left out of the answer.
    """
    known = [host for host in hosts if host.name in interfaces]
    chosen: dict[str, NicChoice | NicProblem] = {}
    while known:
        found = _choose(inventory, known, interfaces)
        master, *others = known
        first = found[master.name]
        if isinstance(first, NicChoice) or first.ambiguous or len(others) < 2:
            return {**chosen, **found}
        chosen[master.name] = first
        known = others
    return chosen


def _choose(
    inventory: Inventory, known: Sequence[Host], interfaces: Mapping[str, Sequence[Interface]]
) -> dict[str, NicChoice | NicProblem]:
    chosen: dict[str, NicChoice | NicProblem] = {}
    for host in known:
        told = _told(inventory, host, interfaces[host.name], _not_excluded(host, interfaces[host.name]))
        if told is not None:
            chosen[host.name] = told
    if len(chosen) == len(known):
        return {host.name: chosen[host.name] for host in known}

    real = {host.name: _not_excluded(host, _usable(host.name, interfaces)) for host in known}
    master, *workers = known
    if master.name not in chosen:
        chosen[master.name] = _master(master, [real[worker.name] for worker in workers], real[master.name])
    anchor = chosen[master.name]
    for worker in workers:
        if worker.name not in chosen:
            chosen[worker.name] = _worker(worker, real[worker.name], master, anchor)
    return {host.name: chosen[host.name] for host in known}


def _not_excluded(host: Host, nics: Sequence[Interface]) -> list[Interface]:
    return [nic for nic in nics if not any(fnmatchcase(nic.name, pattern) for pattern in host.exclude)]


def _told(
    inventory: Inventory, host: Host, nics: Sequence[Interface], candidates: Sequence[Interface]
) -> NicChoice | NicProblem | None:
    """What the inventory says of this host; None where it says nothing."""
    subnet = inventory.network.subnet
    if host.nic is not None:
        return _named(host, host.nic, nics, subnet, f"inventory: nic of {host.name}")
    if subnet is not None:
        reason = f"inventory: in network.subnet {subnet}"
        return _in_subnet(host, candidates, ipaddress.ip_network(subnet), reason)
    if inventory.network.nic is not None:
        return _named(host, inventory.network.nic, nics, subnet, "inventory: network.nic")
    return None


def _named(
    host: Host, name: str, nics: Sequence[Interface], subnet: str | None, reason: str
) -> NicChoice | NicProblem:
    for nic in nics:
        if name == nic.name or name in nic.altnames:
            if not nic.ipv4:
                return NicProblem(
                    f"NIC {nic.name} has no IPv4 address",
                    _listed(nics),
                    f"give {nic.name} an address on {host.name}, or name another NIC in the inventory",
                )
            inside = _addresses_in(nic, ipaddress.ip_network(subnet)) if subnet else []
            return NicChoice(nic, (inside or _addresses(nic))[0], reason)
    return NicProblem(
        f"there is no NIC {name}",
        _listed(nics),
        f"set `nic` of {host.name} to one that it has: {', '.join(_listed(nics)) or 'none has an address'}",
    )


def _in_subnet(host: Host, nics: Sequence[Interface], subnet: Network, reason: str) -> NicChoice | NicProblem:
    inside = [nic for nic in nics if not nic.loopback and _addresses_in(nic, subnet)]
    if len(inside) == 1:
        return NicChoice(inside[0], _addresses_in(inside[0], subnet)[0], reason)
    what = "several NICs have" if inside else "no NIC has"
    return NicProblem(
        f"{what} an address in {subnet}",
        _listed(inside or nics),
        f"set `nic` of {host.name} in the inventory" + ("" if inside else ", or mend network.subnet"),
    )


def _usable(name: str, interfaces: Mapping[str, Sequence[Interface]]) -> list[Interface]:
    """The NICs by which another host could reach this one.

    An address that another host has too (172.17.0.1 of docker0, say) cannot lead there.
    """
    elsewhere = {
        address
        for other, nics in interfaces.items()
        if other != name
        for nic in nics
        for address in _addresses(nic)
    }
    return [
        nic
        for nic in interfaces[name]
        if nic.up
        and not nic.loopback
        and not _VIRTUAL.match(nic.name)
        and any(address not in elsewhere for address in _addresses(nic))
    ]


def _master(
    master: Host, workers: Sequence[Sequence[Interface]], nics: Sequence[Interface]
) -> NicChoice | NicProblem:
    if not workers:
        return _alone(master, nics)
    reached = [
        (nic, network)
        for nic in nics
        for network in _networks(nic)
        if all(any(_addresses_in(other, network) for other in worker) for worker in workers)
    ]
    if len(reached) == 1:
        nic, network = reached[0]
        return NicChoice(nic, _addresses_in(nic, network)[0], f"every worker has an address in {network}")
    what = "several NICs lead" if reached else "no NIC leads"
    return NicProblem(
        f"{what} to every worker",
        _listed(nic for nic, _ in reached) if reached else _listed(nics),
        f"set network.subnet in the inventory, or `nic` of {master.name}",
        ambiguous=bool(reached),
    )


def _alone(host: Host, nics: Sequence[Interface]) -> NicChoice | NicProblem:
    """A job on one host needs a NIC only for its own address."""
    logged_in = [nic for nic in nics if host.address in _addresses(nic)]
    for nic in [*logged_in, *nics]:
        return NicChoice(nic, _addresses(nic)[0], "the only host: no traffic leaves it")
    return NicProblem("no NIC is up with an IPv4 address", (), f"set `nic` of {host.name} in the inventory")


def _worker(
    worker: Host, nics: Sequence[Interface], master: Host, anchor: NicChoice | NicProblem
) -> NicChoice | NicProblem:
    if isinstance(anchor, NicProblem):
        message = f"undecided until the master {master.name} has one"
        return NicProblem(message, (), anchor.fix, waits_for=master.name)
    network = next(
        network for network in _networks(anchor.interface) if ipaddress.ip_address(anchor.address) in network
    )
    return _in_subnet(worker, nics, network, f"in the subnet of {master.name}'s {anchor.interface.name}")


def _addresses(nic: Interface) -> list[str]:
    return [address.split("/")[0] for address in nic.ipv4]


def _networks(nic: Interface) -> list[Network]:
    return list(dict.fromkeys(ipaddress.ip_network(address, strict=False) for address in nic.ipv4))


def _addresses_in(nic: Interface, network: Network) -> list[str]:
    return [address for address in _addresses(nic) if ipaddress.ip_address(address) in network]


def _listed(nics: Iterable[Interface]) -> tuple[str, ...]:
    return tuple(f"{nic.name} {nic.ipv4[0]}" for nic in nics if nic.ipv4 and not nic.loopback)
