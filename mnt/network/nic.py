"""The NIC that carries the training traffic of each host. Pure.

The first rule that applies decides:

1. the host's own `nic`;
2. the NIC with an address in `network.subnet`;
3. `network.nic`;
4. on the master, the NIC by which every worker reaches it; on a worker, the NIC in the subnet of the master's
   training address.

Rules 2 and 4 skip NICs that `network.exclude` names. If there are several candidates, none is chosen: they
are listed, and the user decides in the inventory. A NIC outside `network.subnet` is never chosen. A master
leads the workers to a network (rule 4) only if more than half of the hosts say that they are in it.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from mnt.facts.host import Interface
from mnt.inventory.model import Host, Inventory
from mnt.inventory.values import SHORTEST_PREFIX

# Bridges and virtual links of containers and virtual machines: they never connect two hosts.
_VIRTUAL = re.compile(r"(docker|br-|veth|virbr|cni|flannel|cali|podman|lxc|lxd|tunl)")

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class NicChoice:
    """The training NIC of a host, its IPv4 address (no prefix length) and the reason for the choice."""

    interface: Interface
    address: str
    reason: str

    @property
    def network(self) -> IPNetwork:
        """The network of the address."""
        own = map(ipaddress.ip_interface, self.interface.ipv4)
        return next(each.network for each in own if str(each.ip) == self.address)

    @property
    def failure(self) -> tuple[str, str] | None:
        """Why no traffic can use it, and the fix; None: it works."""
        nic = self.interface
        if not nic.up:
            return f"the training NIC {nic.name} is down", f"sudo ip link set {shlex.quote(nic.name)} up"
        if nic.carrier is False:
            fix = f"check its cable and switch port: ethtool {shlex.quote(nic.name)}"
            return f"the training NIC {nic.name} has no link", fix
        return None


@dataclass(frozen=True)
class Obstacle:
    """Why a host cannot train."""

    message: str
    candidates: tuple[str, ...]  # what was found instead: NICs as `name address`, RDMA devices, ports or GIDs
    fix: str

    def __str__(self) -> str:
        return self.message + (f" (found: {', '.join(self.candidates)})" if self.candidates else "")


@dataclass(frozen=True)
class NicProblem(Obstacle):
    """Why no NIC could be chosen."""

    ambiguous: bool = False  # whether each of the candidates would work
    waits_for: str | None = None  # another host whose problem must be solved first
    twin_of: str | None = None  # the host in the inventory that is the same machine


class Addresses:
    """The IPv4 addresses of a host's NICs, sorted: it can have thousands, and there are as many networks."""

    def __init__(self, nics: Sequence[Interface]) -> None:
        own = sorted(
            (int(ipaddress.IPv4Address(address)), number)
            for number, nic in enumerate(nics)
            for address in nic.addresses
        )
        self._nics = nics
        # Each network as one number, because there may be millions in all.
        self._networks = array("Q", sorted(map(_number, networks_of(nics))))
        self._values, self._numbers = [value for value, _ in own], [number for _, number in own]

    def has(self, network: ipaddress.IPv4Network) -> bool:
        """Whether one of them is in the network."""
        return bool(self._range(network))

    def nics_in(self, network: ipaddress.IPv4Network) -> list[Interface]:
        """The NICs with an address in the network, in their order."""
        return [self._nics[number] for number in sorted({self._numbers[at] for at in self._range(network)})]

    def say(self, network: IPNetwork) -> bool:
        """Whether one of them is in the network by its own prefix length."""
        number = _number(network)
        at = bisect_left(self._networks, number)
        return self._networks[at : at + 1] == array("Q", [number])

    def _range(self, network: ipaddress.IPv4Network) -> range:
        first, last = int(network.network_address), int(network.broadcast_address)
        return range(bisect_left(self._values, first), bisect_right(self._values, last))


def _number(network: IPNetwork) -> int:
    return int(network.network_address) << 6 | network.prefixlen


def choose(
    inventory: Inventory, hosts: Sequence[Host], interfaces: Mapping[str, Sequence[Interface]]
) -> dict[str, NicChoice | NicProblem]:
    """The training NIC of every host in `interfaces`.

    If no NIC of the master reaches every worker, this is a problem of the master, and the workers are decided
    without it. If several NICs do, or if there is only one worker, the workers wait for the master.

    Args:
        inventory: provides `network.subnet` and `network.nic`.
        hosts: in rank order; the first is the master.
        interfaces: by host name; a host that is missing here is missing in the result.
    """
    known = [host for host in hosts if host.name in interfaces]
    could = reachable(interfaces)
    usable = {host.name: _not_excluded(host, could[host.name]) for host in known}
    own = {name: Addresses(nics) for name, nics in usable.items()}
    configured = {host.name: _configured(inventory, host, interfaces[host.name]) for host in known}
    found: dict[str, NicChoice | NicProblem] = {}
    while known:
        found |= _choose(known, configured, usable, own)
        first = found[known[0].name]
        if isinstance(first, NicChoice) or first.ambiguous or len(known) < 3:
            break
        known = known[1:]
    return found


def networks_of(nics: Iterable[Interface]) -> Collection[ipaddress.IPv4Network]:
    """The networks of the IPv4 addresses of a host, each once."""
    return dict.fromkeys(ipaddress.IPv4Network(cidr, strict=False) for nic in nics for cidr in nic.ipv4)


def agreed(network: IPNetwork, count: int, hosts: int) -> bool:
    """Whether a network may lead hosts and open firewalls: `count` of all hosts say that they are in it.

    They must name it with one prefix length: with a short one, a host would name half of the internet.
    """
    return 2 * count > hosts and network.prefixlen >= SHORTEST_PREFIX


def reachable(interfaces: Mapping[str, Sequence[Interface]]) -> dict[str, list[Interface]]:
    """The NICs of each host by which another host could reach it, by host name."""
    shared = _shared_addresses(interfaces.values())
    return {host: _usable(nics, shared) for host, nics in interfaces.items()}


def _choose(
    known: Sequence[Host],
    configured: Mapping[str, NicChoice | NicProblem | None],
    usable: Mapping[str, Sequence[Interface]],
    own: Mapping[str, Addresses],
) -> dict[str, NicChoice | NicProblem]:
    """The choices if the first host of `known` is the master.

    Args:
        configured: the choice by the inventory's settings, by host name; None if it has none.
        usable: by host name, as `reachable`.
        own: their addresses.
    """
    master, *workers = known

    def says(host: Host, network: IPNetwork) -> bool:
        choice = configured[host.name]
        named = isinstance(choice, NicChoice) and choice.network == network
        return named or own[host.name].say(network)

    @cache
    def leads(network: IPNetwork) -> bool:
        return agreed(network, sum(says(host, network) for host in known), len(known))

    chosen: dict[str, NicChoice | NicProblem] = {}
    for host in known:
        choice = configured[host.name]
        if choice is None and host == master:
            choice = _master(master, [own[worker.name] for worker in workers], usable[host.name], leads)
        elif choice is None:
            choice = _worker(host, usable[host.name], master, chosen[master.name], leads)
        chosen[host.name] = _plausible(host, choice)
    return chosen


def _plausible(host: Host, choice: NicChoice | NicProblem) -> NicChoice | NicProblem:
    if isinstance(choice, NicProblem) or choice.network.prefixlen >= SHORTEST_PREFIX:
        return choice
    nic = choice.interface
    return NicProblem(
        f"NIC {nic.name} is in {choice.network}: no training network is larger than a /{SHORTEST_PREFIX}",
        _listed([nic]),
        f"give {shlex.quote(nic.name)} of {host.name} the prefix length of its network",
    )


def _not_excluded(host: Host, nics: Sequence[Interface]) -> list[Interface]:
    return [nic for nic in nics if not any(fnmatchcase(nic.name, pattern) for pattern in host.exclude)]


def _configured(inventory: Inventory, host: Host, nics: Sequence[Interface]) -> NicChoice | NicProblem | None:
    """The choice by the inventory's settings; None if it has none for this host."""
    subnet = inventory.network.subnet
    if host.nic is not None:
        return _named(host, host.nic, nics, subnet, f"inventory: nic of {host.name}")
    if subnet is not None:
        reason = f"inventory: in network.subnet {subnet}"
        return _in_subnet(host, _not_excluded(host, nics), ipaddress.ip_network(subnet), reason)
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
                    f"configure an address on {shlex.quote(nic.name)} of {host.name}, "
                    "or set `nic` to another NIC",
                )
            inside = addresses_in(nic, ipaddress.ip_network(subnet)) if subnet else nic.addresses
            if not inside:
                return NicProblem(
                    f"NIC {nic.name} has no address in network.subnet {subnet}",
                    _listed(nics),
                    f"set `nic` of {host.name} to a NIC that has one, or correct network.subnet",
                )
            return NicChoice(nic, inside[0], reason)
    return NicProblem(f"there is no NIC {name}", _listed(nics), _existing(host, nics, subnet))


def _existing(host: Host, nics: Sequence[Interface], subnet: str | None) -> str:
    """The fix for a name that no NIC has: the one that is meant, if only one is in the training subnet."""
    known = [nic for nic in nics if nic.ipv4 and not nic.loopback]
    inside = [nic for nic in known if subnet and addresses_in(nic, ipaddress.ip_network(subnet))]
    if len(inside) == 1:
        pasted = f"to the one in {subnet}: {shlex.quote(inside[0].name)}"
    else:
        listed = ", ".join(f"{shlex.quote(nic.name)} {nic.ipv4[0]}" for nic in inside or known)
        pasted = f"to an existing NIC: {listed or 'none has an address'}"
    return f"set `nic` of {host.name} in the inventory {pasted}"


def _in_subnet(
    host: Host, nics: Sequence[Interface], subnet: IPNetwork, reason: str
) -> NicChoice | NicProblem:
    inside = [nic for nic in nics if not nic.loopback and addresses_in(nic, subnet)]
    if len(inside) == 1:
        return NicChoice(inside[0], addresses_in(inside[0], subnet)[0], reason)
    what = "several NICs have" if inside else "no NIC has"
    return NicProblem(
        f"{what} an address in {subnet}",
        _listed(inside or nics),
        f"set `nic` of {host.name} in the inventory" + ("" if inside else ", or correct network.subnet"),
    )


def claimed_twice(interfaces: Mapping[str, Sequence[Interface]]) -> dict[str, list[str]]:
    """The hosts by address that several of them have, on a NIC that could carry training traffic.

    Such a NIC is not chosen (`choose`), so a host that claims the address of another changes the choice.
    Link-local addresses are left out: each host may have the same one for its BMC.
    """
    claims: dict[str, list[str]] = {}
    for host, nics in interfaces.items():
        own = {address for nic in _usable(nics, set()) for address in nic.addresses}
        for address in own:
            claims.setdefault(address, []).append(host)
    return {
        address: hosts
        for address, hosts in sorted(claims.items())
        if len(hosts) > 1 and not ipaddress.ip_address(address).is_link_local
    }


def _shared_addresses(hosts: Iterable[Sequence[Interface]]) -> set[str]:
    """The addresses that several hosts have, for example 172.17.0.1 of docker0: they reach none of them."""
    count = Counter(address for nics in hosts for address in {each for nic in nics for each in nic.addresses})
    return {address for address, hosts_with in count.items() if hosts_with > 1}


def _usable(nics: Sequence[Interface], shared: set[str]) -> list[Interface]:
    """The NICs by which another host could reach this one."""
    return [
        nic
        for nic in nics
        if nic.up
        and not nic.loopback
        and not _VIRTUAL.match(nic.name)
        and not shared.issuperset(nic.addresses)
    ]


def _master(
    master: Host,
    workers: Sequence[Addresses],
    nics: Sequence[Interface],
    leads: Callable[[IPNetwork], bool],
) -> NicChoice | NicProblem:
    if not workers:
        return _alone(master, nics)
    reaching = [
        (nic, network)
        for nic in nics
        for network in networks_of([nic])
        if all(worker.has(network) for worker in workers)
    ]
    reached = [(nic, network) for nic, network in reaching if leads(network)]
    if reaching and not reached:
        return _unlike(master, *reaching[0], _listed(nics))
    if len(reached) == 1:
        nic, network = reached[0]
        return NicChoice(nic, addresses_in(nic, network)[0], f"every worker has an address in {network}")
    return NicProblem(
        "several NICs reach every worker" if reached else "no NIC reaches every worker",
        _listed(nic for nic, _ in reached) if reached else _listed(nics),
        f"set network.subnet in the inventory, or `nic` of {master.name}",
        ambiguous=bool(reached),
    )


def _alone(host: Host, nics: Sequence[Interface]) -> NicChoice | NicProblem:
    """A job on a single host needs a NIC only for an address."""
    logged_in = [nic for nic in nics if host.address in nic.addresses]
    for nic in [*logged_in, *nics]:
        return NicChoice(nic, nic.addresses[0], "the only host: no traffic leaves it")
    return NicProblem(
        "no NIC that is up has an IPv4 address", (), f"set `nic` of {host.name} in the inventory"
    )


def _unlike(master: Host, nic: Interface, network: IPNetwork, listed: tuple[str, ...] = ()) -> NicProblem:
    name = shlex.quote(nic.name)
    return NicProblem(
        f"{master.name}'s {nic.name} is in {network}, and no more than half of the hosts say that of theirs",
        listed,
        f"give {name} of {master.name} the prefix length that the others have there, or set network.subnet",
    )


def _worker(
    worker: Host,
    nics: Sequence[Interface],
    master: Host,
    masters: NicChoice | NicProblem,
    leads: Callable[[IPNetwork], bool],
) -> NicChoice | NicProblem:
    """The choice for a worker, from `masters`, the choice for the master."""
    if isinstance(masters, NicProblem):
        message = f"not decided until the master {master.name} has a training NIC"
        return NicProblem(message, (), masters.fix, waits_for=master.name)
    if not leads(masters.network):
        return _unlike(master, masters.interface, masters.network)
    reason = f"in the subnet of {master.name}'s {masters.interface.name}"
    return _in_subnet(worker, nics, masters.network, reason)


def addresses_in(nic: Interface, network: IPNetwork) -> list[str]:
    """The IPv4 addresses of a NIC in a network, without prefix length."""
    return [address for address in nic.addresses if ipaddress.ip_address(address) in network]


def _listed(nics: Iterable[Interface]) -> tuple[str, ...]:
    return tuple(f"{nic.name} {nic.ipv4[0]}" for nic in nics if nic.ipv4 and not nic.loopback)
