"""Do the hosts reach each other over the training network?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mnt.facts.fleet import FleetFacts
from mnt.facts.reach import Reach
from mnt.inventory.hostlist import fold
from mnt.preflight import reachability
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.parity import Subject, by_majority
from mnt.preflight.registry import Needs, check


@check("nic-reach", needs=Needs.REACH)
def nic_reach(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host connects to every other over the training NICs, both ways.

    All hosts listen at the same time, on the master port and on three ports of the range that NCCL and gloo
    take theirs from (net.ipv4.ip_local_port_range), and each connects to all others: 2 s a connection. What
    fails is folded: a host that is cut off, a firewall that closes one way, a port range that is closed, and
    two subnets without a route read differently. Pairs between which `route` finds another NIC are left to
    it. Where somebody holds the master port already it is left alone, and `port-free` tells. A master port
    that is closed on workers only is a warning. Of more than 64 hosts each tries those at a distance of 1, 2,
    4, .. in rank order on both sides, and the master tries all.
    """
    reach = fleet.reach
    if reach is None:
        return
    for host, why in reach.errors.items():
        yield Problem(
            hosts=(host,),
            message=f"it took no part: {why}",
            found=why,
            expected="it listens, and connects to the others",
            fix="run it again: mnt preflight --only nic-reach",
        )
    names = [host.name for host in fleet.hosts]
    port = fleet.inventory.network.master_port
    yield from reachability.problems(reach, names, fleet.master.name, port)


@check("route", needs=Needs.REACH)
def route(fleet: FleetFacts) -> Iterator[Problem]:
    """The route to every peer leaves through the chosen training NIC.

    The kernel is asked without a source address, as NCCL and gloo connect. Otherwise a job would run over
    another network than it is told to, often a slow one.
    """
    reach = fleet.reach
    if reach is None:
        return
    for host, seen in reach.pairs.items():
        chosen = reach.endpoints[host].nic
        strays: dict[str, list[str]] = {}
        for peer, reached in seen.items():
            if reached.route and reachability.strays(reach, (host, peer)):
                strays.setdefault(reached.route, []).append(peer)
        for other, peers in strays.items():
            who = "every other host" if len(peers) == len(seen) else fold(peers)
            address = reach.endpoints[peers[0]].address
            yield Problem(
                hosts=(host,),
                message=f"traffic to {who} leaves through {other}, not through the training NIC {chosen}",
                found=other,
                expected=chosen,
                fix=f"see which rule wins: ip route get {address}; ip rule; are two NICs in one subnet?",
            )


@check("mtu", needs=Needs.REACH)
def mtu(fleet: FleetFacts) -> Iterator[Problem]:
    """All training NICs have one MTU, and packets of that size get through.

    A different MTU is a warning: TCP agrees on the smaller, RDMA and UDP do not. A full-size packet that
    never arrives fails: small ones pass there, so connections come about and then hang.
    """
    reach = fleet.reach
    if reach is None:
        return
    yield from by_majority(
        Subject(
            name="the MTU of the training NIC",
            pin="mtu",
            fix=lambda host, wanted: f"sudo ip link set {reach.endpoints[host].nic} mtu {wanted}",
            exactly=str,
            settle=lambda wanted: f"an MTU of {wanted} everywhere",
        ),
        {host: str(endpoint.mtu) for host, endpoint in reach.endpoints.items()},
        Severity.WARN,
    )
    yield from _lost_packets(reach, [host.name for host in fleet.hosts])


def _lost_packets(reach: Reach, names: list[str]) -> Iterator[Problem]:
    tried = {
        (host, peer): reached.full
        for host, seen in reach.pairs.items()
        for peer, reached in seen.items()
        if reached.full is not None
    }
    lost = {pair for pair, full in tried.items() if not full}
    hosts = [host for host in names if host in reach.pairs]
    for blame in reachability.fold_ways(lost, set(tried), hosts, set()):
        yield Problem(
            hosts=blame.hosts,
            message=f"full-size packets {_way(blame)} are lost, though small ones get through",
            found=f"a packet of {_sizes(reach, blame.pairs)} bytes does not arrive",
            expected="packets as large as the MTU get through",
            fix="set the MTU of the switch ports, and of what lies between, to that of the NICs",
        )


def _way(blame: reachability.Blame) -> str:
    ways: Mapping[str, str] = {"in": "to it", "out": "from it", "both": "to and from it"}
    return ways.get(blame.shape, f"from {fold(blame.sources)}")


def _sizes(reach: Reach, pairs: frozenset[reachability.Pair]) -> str:
    return " or ".join(sorted({str(reach.pairs[host][peer].mtu) for host, peer in pairs}))
