"""Does every host have a working NIC for the training traffic?"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Iterator, Sequence

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts, Interface, Traffic
from mnt.inventory.hostlist import fold
from mnt.inventory.model import Host
from mnt.network.decision import NetworkDecision
from mnt.network.nic import NicChoice, claimed_twice
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.parity import Subject, by_majority
from mnt.preflight.registry import host_check, network_check

# Counters above both limits (a number, and a part of the packets) are a warning. Below them they are normal:
# a replugged cable causes a few errors, and unwanted packets (LLDP, foreign VLANs) cause some drops.
_ERRORS = (10, 1e-5)
_DROPS = (1000, 1e-2)


@network_check("nic")
def nic(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """Every host has a training NIC that is up, has a link and an IPv4 address.

    The training NIC is the host's `nic`; else the NIC in `network.subnet`; else `network.nic`; else on a
    worker the NIC in the subnet of the master's training address, and on the master the NIC by which the
    workers reach it. Alternative names of a NIC are accepted. If there are several candidates, the check
    fails and lists them.
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
        elif choice.waits_for is None:
            yield Problem(
                hosts=(name,),
                message=choice.message,
                found=", ".join(choice.candidates) or _listed(interfaces[name]),
                expected="one NIC for the training traffic",
                fix=choice.fix,
            )


def _listed(interfaces: Sequence[Interface]) -> str:
    names = [f"{nic.name} {' '.join(nic.ipv4) or 'without IPv4'}" for nic in interfaces if not nic.loopback]
    return ", ".join(names) or "no NIC at all"


@network_check("address-unique", severity=Severity.WARN)
def address_unique(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """No two hosts have the same IPv4 address on a NIC that could carry training traffic.

    Packets to such an address reach only one of them. A NIC all of whose addresses several hosts claim is not
    chosen as a training NIC, so the training may use another network than intended. Link-local addresses, and
    the bridges of containers, are left out.
    """
    for address, hosts in claimed_twice(fleet.interfaces()).items():
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
            fix="move one to another subnet, or bond them; or add a source rule for "
            f"{shlex.quote(second.name)} and: sudo sysctl -w net.ipv4.conf.all.arp_ignore=1 "
            "net.ipv4.conf.all.arp_announce=2",
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
                    message=f"{name} has {count} {what} in {packets} packets",
                    found=f"{count} {what}",
                    expected="almost none",
                    fix=f"find the counters that increase: ethtool -S {pasted} | grep -iE 'err|drop|crc'; "
                    f"then check cable, transceiver and ring size: ethtool -g {pasted}",
                )


@host_check("hostname-loopback", severity=Severity.WARN)
def hostname_loopback(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """The host resolves its own name to an address by which other hosts can reach it.

    Debian's installer writes 127.0.1.1 into /etc/hosts. If GLOO_SOCKET_IFNAME is not set, gloo resolves the
    name and announces this address to its peers. `mnt` sets the variable, but other launchers may not.
    """
    if facts.resolved is None:
        return
    addresses = facts.resolved.addresses
    if addresses and all(ipaddress.ip_address(address).is_loopback for address in addresses):
        message, found = f"{facts.hostname} resolves to a loopback address", ", ".join(addresses)
    elif not addresses:
        message, found = f"{facts.hostname} does not resolve", facts.resolved.error or "no address"
    else:
        return
    yield Problem(
        message=message,
        found=found,
        expected="an address in the training network",
        fix=f"in /etc/hosts, set {shlex.quote(facts.hostname)} to the address of the training NIC, "
        "not to 127.0.1.1",
    )
