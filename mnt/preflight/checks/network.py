"""Does every host have a working NIC for the training traffic?"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Collection, Iterator, Sequence

from mnt.errors import counted
from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts, Interface, Traffic
from mnt.facts.system import Resolved
from mnt.inventory.hostlist import fold
from mnt.inventory.model import Host
from mnt.network.decision import NetworkDecision
from mnt.network.nic import NicChoice, NicProblem, claimed_twice
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.parity import Subject, by_majority
from mnt.preflight.registry import host_check, network_check

# Counters above both limits (a number, and a part of the packets) are a warning. Below them they are normal:
# a replugged cable causes a few errors, and unwanted packets (LLDP, foreign VLANs) cause some drops.
_ERRORS = (10, 1e-5)
_DROPS = (1000, 1e-2)

_TABLE = 213  # of routes for one NIC, in a fix: any number below 253 that is free, ip-route(8)

# Names that every host has for itself: hosts(5), and the lines of distributions for IPv6.
_LOCALHOST = re.compile(r"(ip6-)?(localhost|loopback)[46]?(\..*)?", re.IGNORECASE)


@network_check("nic")
def nic(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """Every host has a training NIC that is up, has a link and an IPv4 address.

    The training NIC is the host's `nic`; else the NIC in `network.subnet`; else `network.nic`; else on a
    worker the NIC in the subnet of the master's training address, and on the master the NIC by which the
    workers reach it. Alternative names of a NIC are accepted. If there are several candidates, the check
    fails and lists them. It also fails if the host's `nic` has no address in `network.subnet`, and if no
    more than half of the hosts say that they are in the subnet by which the workers are to reach the master.
    """
    interfaces = fleet.interfaces()
    for name, node in network.nodes.items():
        choice = node.nic
        if isinstance(choice, NicChoice):
            chosen = choice.interface
            if choice.failure is not None:
                message, fix = choice.failure
                yield Problem(
                    hosts=(name,),
                    message=message,
                    found="up, no carrier" if chosen.up else "down",
                    expected=f"{chosen.name} up, with a link ({choice.reason})",
                    fix=fix,
                )
        elif choice.waits_for is None and choice.twin_of is None:
            yield Problem(
                hosts=(name,),
                message=choice.message,
                found=", ".join(choice.candidates) or _listed(interfaces[name]),
                expected="one NIC for the training traffic",
                fix=choice.fix,
            )


@network_check("duplicate-host")
def duplicate_host(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """No machine is in the selection twice: under two names, or two addresses or ports of SSH.

    Two hosts are one machine if they have the same boot id, network namespace and host name. Containers and
    other namespaces of one kernel are different hosts if each has a network of its own. Ranks on one machine
    would share its GPUs and ports, and NCCL refuses two ranks on one GPU. The later entry has the finding,
    and takes no part in the checks of the network.
    """
    for name, node in network.nodes.items():
        if isinstance(node.nic, NicProblem) and node.nic.twin_of is not None:
            facts = fleet.facts[name]
            boot_id = facts.machine.boot_id if facts.machine else "unknown"
            yield Problem(
                hosts=(name,),
                message=node.nic.message,
                found=f"{facts.hostname} with boot id {boot_id}, as {node.nic.twin_of}",
                expected="another machine",
                fix=node.nic.fix,
            )


def _listed(interfaces: Sequence[Interface]) -> str:
    names = [f"{nic.name} {' '.join(nic.ipv4) or 'without IPv4'}" for nic in interfaces if not nic.loopback]
    return ", ".join(names) or "no NIC at all"


@network_check("address-unique", severity=Severity.WARN)
def address_unique(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """No two hosts have the same IPv4 address on a NIC that could carry training traffic.

    Packets to such an address reach only one of them. A NIC all of whose addresses several hosts claim is not
    chosen as a training NIC, so the training may use another network than intended. Link-local addresses, and
    the bridges of containers, are left out, and so are the entries of `duplicate-host`.
    """
    twins = {
        name
        for name, node in network.nodes.items()
        if isinstance(node.nic, NicProblem) and node.nic.twin_of is not None
    }
    interfaces = {host: nics for host, nics in fleet.interfaces().items() if host not in twins}
    for address, hosts in claimed_twice(interfaces).items():
        yield Problem(
            hosts=tuple(hosts),
            message=f"several hosts claim the address {address}",
            found=f"{address} on {fold(hosts)}",
            expected="an address of one host only",
            fix="find the wrong claim: ip -4 addr; until then set network.subnet, or `nic` of the hosts",
        )


@host_check("subnet-overlap", severity=Severity.WARN)
def subnet_overlap(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """No host has two NICs in one subnet.

    Linux answers ARP requests for any of its addresses on all its NICs, and sends packets by the first
    matching route. So traffic for one NIC may use the other.
    """
    nics = [nic for nic in facts.interfaces if nic.up and not nic.loopback]
    for first, second, shared in _shared_subnets(nics):
        yield Problem(
            message=f"{first.name} and {second.name} are both in {shared}",
            found=f"{first.name} {' '.join(first.ipv4)}, {second.name} {' '.join(second.ipv4)}",
            expected="one NIC per subnet, or a bond of both",
            fix=f"move one to another subnet, or bond them; or keep both: {_source_rule(second, shared)}; "
            "then leave this check out: --skip subnet-overlap",
        )


def _source_rule(nic: Interface, network: str) -> str:
    """The command for a NIC in the network of another one: what is its own leaves and is answered by it."""
    within = ipaddress.ip_network(network)
    own = next(each for each in nic.addresses if ipaddress.ip_address(each) in within)
    return (
        f"sudo ip route replace {network} dev {shlex.quote(nic.name)} src {own} table {_TABLE} && "
        f"sudo ip rule add from {own} table {_TABLE} && "
        "sudo sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"
    )


def _shared_subnets(nics: Sequence[Interface]) -> Iterator[tuple[Interface, Interface, str]]:
    """(a NIC, a later one, a network with addresses of both), once for each later one.

    A /32 is a point-to-point link, not a subnet. Two addresses are in one subnet if they agree on the bits of
    the longer prefix. A host may claim thousands of NICs, so pairs are not compared one by one.
    """
    seen: dict[tuple[int, int], Interface] = {}  # (length of a prefix, its bits) -> the first NIC with it
    for nic in nics:
        own = [
            (length, int(address.ip) >> (32 - length))
            for address in map(ipaddress.IPv4Interface, nic.ipv4)
            for length in range(address.network.prefixlen, 32)
        ]
        for length, bits in own:
            if (length, bits) in seen:
                first = seen[length, bits]
                yield first, nic, str(ipaddress.IPv4Network((bits << (32 - length), length)))
                break
        for each in own:
            seen.setdefault(each, nic)


@network_check("nic-speed", severity=Severity.WARN)
def nic_speed(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """All training NICs have the same link speed.

    A collective is as fast as its slowest link. The majority decides. NICs whose driver does not report a
    speed are not judged.
    """
    nics = network.working()
    yield from by_majority(
        Subject(
            name="the speed of the training NIC",
            fix=lambda host, _: (
                "check cable, switch port and autonegotiation: "
                f"ethtool {shlex.quote(nics[host].interface.name)}"
            ),
            tie_fix="check cables, switch ports and autonegotiation: ethtool NIC",
        ),
        {
            host: f"{choice.interface.speed} Mbit/s"
            for host, choice in nics.items()
            if choice.interface.speed is not None
        },
    )


@network_check("nic-errors", severity=Severity.WARN)
def nic_errors(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """The training NICs have few errors and drops since the interface came up.

    The check warns about errors if there are more than 10 and more than one in 100,000 packets, and about
    drops if there are more than 1000 and more than one in 100 packets.
    """
    for host, choice in network.working().items():
        name, traffic = choice.interface.name, choice.interface.traffic or Traffic()
        pasted = shlex.quote(name)
        for what, count, packets, (least, rate) in (
            ("receive errors", traffic.receive_errors, traffic.received, _ERRORS),
            ("receive drops", traffic.receive_drops, traffic.received, _DROPS),
            ("send errors", traffic.send_errors, traffic.sent, _ERRORS),
            ("send drops", traffic.send_drops, traffic.sent, _DROPS),
        ):
            if count > least and count > rate * packets:
                yield Problem(
                    hosts=(host,),
                    message=f"{name} has {count} {what} in {counted(packets, 'packet')}",
                    found=f"{count} {what}",
                    expected="almost none",
                    fix=f"find the counters that increase: ethtool -S {pasted} | grep -iE 'err|drop|crc'; "
                    f"then check cable, transceiver and ring size: ethtool -g {pasted}",
                )


@network_check("hostname-loopback", severity=Severity.WARN)
def hostname_loopback(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """The host resolves its own name to an address by which other hosts can reach it.

    The first address that the host's resolver returns counts, because gloo announces this one to its peers
    if GLOO_SOCKET_IFNAME is not set. Addresses that the host does not have are skipped, as gloo skips them;
    if it has none of them, gloo uses 127.0.0.1. Debian's installer writes 127.0.1.1 into /etc/hosts, and a
    resolver returns loopback addresses before all others. `mnt` sets the variable, but other launchers may
    not.
    """
    for host, facts in fleet.answers():
        if facts.resolved is not None and (problem := _misleading_name(facts.hostname, facts)):
            message, found = problem
            nic = network.nodes[host.name].nic if host.name in network.nodes else None
            yield Problem(
                hosts=(host.name,),
                message=message,
                found=found,
                expected="first an address by which other hosts can reach it",
                fix=_own_name(host, facts, nic.address if isinstance(nic, NicChoice) else None),
            )


def _misleading_name(name: str, facts: HostFacts) -> tuple[str, str] | None:
    """What is wrong with the addresses to which the host resolves its own name, and what they are."""
    resolved = facts.resolved or Resolved()
    found = ", ".join(resolved.addresses)
    if not resolved.addresses:
        return f"{name} does not resolve", resolved.error or "no address"
    own = {ipaddress.ip_interface(each).ip for nic in facts.interfaces for each in (*nic.ipv4, *nic.ipv6)}
    first = next((each for each in resolved.addresses if _is_own(each, own)), None)
    if first is None:
        return f"{name} resolves to an address that this host does not have", found
    return (f"{name} resolves to a loopback address", found) if _is_loopback(first) else None


def _is_own(address: str, own: Collection[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> bool:
    """Whether the host has this address, as it has all of 127.0.0.0/8; also if its own ones are unknown."""
    return not own or _is_loopback(address) or ipaddress.ip_address(address.partition("%")[0]) in own


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _own_name(host: Host, facts: HostFacts, address: str | None) -> str:
    """The fix for a name that does not lead to the host. Nobody can give `localhost` another address."""
    name, before = facts.hostname, ""
    if _LOCALHOST.fullmatch(name):
        name = "NAME" if _LOCALHOST.fullmatch(host.name) else shlex.quote(host.name)
        before = f"give the host a name of its own: echo {name} | sudo tee /etc/hostname && "
        before += "sudo hostname -F /etc/hostname; then "
    else:
        name = shlex.quote(name)
    line = f"{address or 'ADDRESS'} {name}"
    return f"{before}in /etc/hosts, remove {name} from all lines, and add the line: {line}"
