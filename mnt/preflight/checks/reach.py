"""Do the hosts reach each other over the training network?"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Iterator, Sequence

from mnt.facts.fleet import FleetFacts
from mnt.facts.reach import Reach
from mnt.inventory.hostlist import fold
from mnt.network.decision import NetworkDecision
from mnt.preflight import neighbours, reachability
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.parity import Subject, by_majority
from mnt.preflight.registry import Needs, check, network_check

_MOST_ROUTES = 8  # in one fix


@check("nic-reach", needs=Needs.REACH)
def nic_reach(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host can connect to every other over the training NICs, in both directions.

    All hosts listen at the same time: on the master port, and on three ports of the range from which NCCL and
    gloo take their ports (net.ipv4.ip_local_port_range). Each host connects to all others, with a timeout of
    2 s, and a connection counts only if the host itself answers, not one that has its address. Failed
    connections are folded into causes: a host that is cut off, a firewall that blocks one direction, a closed
    port range, two subnets without a route. Pairs that the check `route` reports are left out, and so are
    connections that `neighbour-table` explains. If a process already holds the master port, that port is not
    tried, and `port-free` reports it. A master port that is closed on workers only is a warning. With more
    than 64 hosts, each host tries those at a distance of 1, 2, 4, .. in rank order on both sides, and the
    master tries all.
    """
    reach = fleet.reach
    for host, error in reach.errors.items():
        yield Problem(
            hosts=(host,),
            message=f"the host took no part in the test: {error}",
            found=error,
            expected="it listens, and connects to the others",
            fix="mnt preflight --only nic-reach",
        )
    names = [host.name for host in fleet.hosts]
    networks = {host: nic.network for host, nic in reach.nics.items()}
    explained = neighbours.lost(reach, neighbours.crowded(fleet, networks))
    subnet = fleet.inventory.network.subnet
    yield from reachability.problems(
        reach, names, fleet.master.name, fleet.master_port, explained, subnet=subnet
    )


@network_check("neighbour-table", playbook="tuning")
def neighbour_table(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """The kernel's table of IPv4 neighbours has room for all hosts of the training subnet.

    The table has an entry for each address in a host's subnets with which it exchanges packets, and holds at
    most net.ipv4.neigh.default.gc_thresh3 of them, 1024 by default. Beyond that, packets to some hosts are
    lost without an error. Containers and other namespaces share the table of their machine's kernel. A table
    that is too small is a warning, and a failure if connections of `nic-reach` were lost; these count for no
    host.
    """
    networks = {host: str(choice.network) for host, choice in network.working().items()}
    crowded = neighbours.crowded(fleet, networks)
    pairs = neighbours.lost(fleet.reach, crowded)
    said_so = {source for source, target in pairs if not {source, target} & set(crowded)}
    for host in (host.name for host in fleet.hosts if host.name in {*crowded, *said_so}):
        if host in crowded:
            message, fix = _too_small(crowded[host])
        else:
            message, fix = "the table of neighbours is full: the kernel has no space for another", _enlarged()
        yield Problem(
            hosts=(host,),
            message=message,
            found=f"connections of nic-reach that were lost: {len(pairs)}" if pairs else "none was lost yet",
            expected="room for twice the hosts of the subnet",
            fix=fix,
            severity=Severity.FAIL if pairs else Severity.WARN,
            # Namespaces of one kernel cannot set it.
            playbook=None if host not in crowded or crowded[host].hosts > 1 else "tuning",
        )


def _too_small(need: neighbours.Need) -> tuple[str, str]:
    """What is wrong with a table, and the fix."""
    table, entries, hosts = need
    if entries < table.limit:
        message = f"the table of neighbours is full: {table.entries} of {table.limit} entries"
    else:
        message = f"the table of neighbours holds {table.limit} entries, but these hosts need {entries}"
    where = "on the machine of these hosts: " if hosts > 1 else ""
    return message, where + _enlarged(max(entries, table.entries))


def _enlarged(entries: int = 4096) -> str:
    """The command for a table of at least twice so many entries, a power of two."""
    size = 1 << (2 * entries - 1).bit_length()
    sizes = enumerate((size // 4, size // 2, size), start=1)
    return "sudo sysctl -w " + " ".join(f"net.ipv4.neigh.default.gc_thresh{i}={n}" for i, n in sizes)


@check("route", needs=Needs.REACH)
def route(fleet: FleetFacts) -> Iterator[Problem]:
    """The route to every peer leaves through the chosen training NIC.

    Otherwise a job would use another network than intended, often a slow one. The kernel is asked for a route
    without a source address, because NCCL and gloo connect without one.
    """
    reach = fleet.reach
    for host, targets in reach.pairs.items():
        chosen = reach.nics[host].name
        strays: dict[str, list[str]] = {}
        for peer, reached in targets.items():
            if reached.route and reachability.strays(reach, (host, peer)):
                strays.setdefault(reached.route, []).append(peer)
        for other, peers in strays.items():
            destination = "every other host" if len(peers) == len(targets) else fold(peers)
            yield Problem(
                hosts=(host,),
                message=f"traffic to {destination} leaves through {other}, not the training NIC {chosen}",
                found=other,
                expected=chosen,
                fix=_straight(reach, host, peers),
            )


def _straight(reach: Reach, host: str, peers: Sequence[str]) -> str:
    """The fix for routes to peers. What a peer says changes no route out of the training network."""
    nic = reach.nics[host]
    find = f"check for two NICs in one subnet: ip route get {reach.nics[peers[0]].address}; ip rule"
    network = ipaddress.ip_network(nic.network)
    inside = [reach.nics[peer].address for peer in peers]
    inside = [address for address in inside if ipaddress.ip_address(address) in network]
    if not inside or len(inside) > _MOST_ROUTES:
        return f"correct the routes; {find}"
    replaced = " && ".join(f"sudo ip route replace {each}/32 dev {shlex.quote(nic.name)}" for each in inside)
    return f"remove the route that leads there ({find}), or until the next boot: {replaced}"


@check("mtu", needs=Needs.REACH)
def mtu(fleet: FleetFacts) -> Iterator[Problem]:
    """All training NICs have the same MTU, and packets of that size arrive.

    Different MTUs are a warning: TCP uses the smaller one, but RDMA and UDP do not. Full-size packets that
    never arrive are a failure: small packets do arrive, so connections are established and then hang.
    """
    reach = fleet.reach
    yield from by_majority(
        Subject(
            name="the MTU of the training NIC",
            fix=lambda host, usual: f"sudo ip link set {shlex.quote(reach.nics[host].name)} mtu {usual}",
            pin_value=str,
            tie_fix="set one MTU on every host: sudo ip link set NIC mtu MTU",
        ),
        {host: str(nic.mtu) for host, nic in reach.nics.items()},
        Severity.WARN,
    )
    yield from _lost_packets(reach, [host.name for host in fleet.hosts])


def _lost_packets(reach: Reach, names: list[str]) -> Iterator[Problem]:
    tried = {
        (host, peer): reached.full
        for host, targets in reach.pairs.items()
        for peer, reached in targets.items()
        if reached.full is not None
    }
    lost = {pair for pair, full in tried.items() if not full}
    hosts = [host for host in names if host in reach.pairs]
    for cause in reachability.explain_by_direction(lost, set(tried), hosts):
        directions = {"in": "to it", "out": "from it", "both": "to and from it"}
        direction = directions.get(cause.shape, f"from {fold(cause.sources)}")
        sizes = sorted({str(reach.pairs[host][peer].mtu) for host, peer in cause.pairs})
        problem = Problem(
            hosts=cause.hosts,
            message=f"full-size packets {direction} are lost, but small packets arrive",
            found=f"a packet of {' or '.join(sizes)} bytes does not arrive",
            expected="packets as large as the MTU arrive",
            fix="set the MTU of the switch ports, and of all devices between them, to the MTU of the NICs",
        )
        yield reachability.with_witness(problem, cause, hosts)
