"""The training NIC of each host, for an inventory that names none yet. Pure.

`mnt.network.nic` decides for a job, and chooses nothing where several networks would do. Here one is
proposed, with the reason: of the networks that all hosts share the fastest; else, on each host, the NIC that
carries its routes to the others. How large a network is, more than half of the hosts must say alike.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mnt.facts.host import HostFacts, Interface
from mnt.inventory.hostlist import brief
from mnt.network.nic import Addresses, agreed, networks_of, reachable

_Network = ipaddress.IPv4Network


@dataclass(frozen=True)
class Training:
    """A proposal: the NIC of each host, and the subnet of all of them; None: there is none."""

    nics: Mapping[str, str] = field(default_factory=dict)  # by host
    subnet: str | None = None  # CIDR
    reason: str = ""


@dataclass(frozen=True)
class _Shared:
    """A network in which every host has a NIC."""

    network: _Network
    nics: Mapping[str, Interface]
    rdma: bool  # whether an RDMA device carries the NIC on every host
    of_ssh: bool  # whether SSH goes to an address in it

    @property
    def speed(self) -> int:
        """Mbit/s of the slowest NIC; 0: a driver does not report it."""
        return min(nic.speed or 0 for nic in self.nics.values())

    def rank(self) -> tuple[object, ...]:
        """The better, the larger."""
        mtu = min(nic.mtu for nic in self.nics.values())
        return self.speed, self.rdma, not self.of_ssh, mtu

    @property
    def quality(self) -> str:
        """` (25 Gbit/s, RDMA)`; empty if nothing is known."""
        words = [
            rate(self.speed) if self.speed else "",
            "RDMA" if self.rdma else "",
            "SSH" if self.of_ssh else "",
        ]
        return f" ({', '.join(filter(None, words))})" if any(words) else ""


def propose(
    facts: Mapping[str, HostFacts],
    ssh: Mapping[str, str],
    routes: Mapping[str, Mapping[str, str | None]],
) -> Training:
    """The NICs for a job on these hosts, none for a single host.

    Args:
        facts: by host, in rank order.
        ssh: the numeric addresses to which SSH goes, by host.
        routes: for each host, the own address from which packets go to an address in `ssh`.
    """
    interfaces = {host: found.interfaces for host, found in facts.items() if found.interfaces}
    if len(interfaces) < 2:
        return Training(reason="the only host: its traffic leaves no NIC" if interfaces else "")
    candidates = reachable(interfaces)
    shared = sorted(_shared(candidates, facts, set(ssh.values())), key=_Shared.rank, reverse=True)
    if shared:
        best, *others = shared
        names = {host: nic.name for host, nic in best.nics.items()}
        return Training(names, str(best.network), _why(best, others))
    return _by_routes(candidates, ssh, routes)


def rate(speed: int) -> str:
    """A speed in Mbit/s for people: `25 Gbit/s`."""
    return f"{speed / 1000:g} Gbit/s" if speed >= 1000 else f"{speed} Mbit/s"


def _shared(
    candidates: Mapping[str, Sequence[Interface]], facts: Mapping[str, HostFacts], ssh: Iterable[str]
) -> Iterable[_Shared]:
    said = Counter(network for nics in candidates.values() for network in networks_of(nics))
    own = {host: Addresses(nics) for host, nics in candidates.items()}
    networks = [
        network
        for network, count in said.items()
        if not network.is_link_local
        and agreed(network, count, len(candidates))
        and all(host.has(network) for host in own.values())
    ]
    for network in sorted(networks):
        # Of several in one subnet (one a GPU, say) the fastest, then the first: max() keeps it.
        chosen = {
            host: max(each.nics_in(network), key=lambda nic: (nic.carrier is not False, nic.speed or 0))
            for host, each in own.items()
        }
        rdma = all(_carries_rdma(facts[host], nic) for host, nic in chosen.items())
        of_ssh = any(ipaddress.ip_address(address) in network for address in ssh)
        yield _Shared(network, chosen, rdma, of_ssh)


def _carries_rdma(facts: HostFacts, nic: Interface) -> bool:
    return facts.rdma is not None and bool(facts.rdma.carrying(nic.name))


def _why(best: _Shared, others: Sequence[_Shared]) -> str:
    why = f"all hosts have a NIC in it{best.quality}"
    also = ", ".join(f"{other.network}{other.quality}" for other in others[:3])
    return f"{why}; they also share {also}" if also else why


def _by_routes(
    candidates: Mapping[str, Sequence[Interface]],
    ssh: Mapping[str, str],
    routes: Mapping[str, Mapping[str, str | None]],
) -> Training:
    """By the routing tables of the hosts, if on each of them one NIC leads to all others."""
    nics: dict[str, str] = {}
    for host, usual in candidates.items():
        ways = {
            routes.get(host, {}).get(ssh[other]) for other in candidates if other != host and other in ssh
        }
        leading = [nic.name for nic in usual if len(ways) == 1 and ways <= {*nic.addresses}]
        if len(leading) == 1:
            nics[host] = leading[0]
    missing = [host for host in candidates if host not in nics]
    if missing:
        why = f"no network that all hosts share, and no NIC of {brief(missing)} leads to all others"
        return Training(reason=f"{why}: set nic of each host")
    return Training(nics, None, "no network that all hosts share: these NICs carry the routes to the others")
