"""Is there a NIC for the training traffic?"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import Interface
from mnt.network.decision import NetworkDecision
from mnt.network.nic import NicChoice
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.parity import Subject, by_majority
from mnt.preflight.registry import check, network_check

# What an interface may have counted before it is a warning: a few errors come with every replugged cable, and
# some drops with packets that nobody wants (LLDP, foreign VLANs).
_ERRORS, _ERROR_RATE = 10, 1e-5
_DROPS, _DROP_RATE = 1000, 1e-2


@network_check("nic")
def nic(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """Every host has a training NIC that is up, has link and an IPv4 address.

    Which one it is: the host's `nic`, else the one in `network.subnet`, else `network.nic`, else on a worker
    the one in the subnet of the master's training address, and on the master the one by which the workers
    reach it. A name may be an alternative one. Several candidates are never guessed between.
    """
    interfaces = fleet.interfaces()
    for name, node in network.nodes.items():
        choice = node.nic
        if isinstance(choice, NicChoice):
            yield from _judge(name, choice)
        elif choice.waits_for is None:
            yield Problem(
                hosts=(name,),
                message=choice.message,
                found=", ".join(choice.candidates) or _listed(interfaces[name]),
                expected="one NIC for the training traffic",
                fix=choice.fix,
            )


def _judge(host: str, choice: NicChoice) -> Iterator[Problem]:
    chosen = choice.interface
    expected = f"{chosen.name} up, with link ({choice.reason})"
    if not chosen.up:
        yield Problem(
            hosts=(host,),
            message=f"the training NIC {chosen.name} is down",
            found="down",
            expected=expected,
            fix=f"sudo ip link set {chosen.name} up",
        )
    elif chosen.carrier is False:
        yield Problem(
            hosts=(host,),
            message=f"the training NIC {chosen.name} has no link",
            found="up, no carrier",
            expected=expected,
            fix=f"look at its cable and switch port: ethtool {chosen.name}",
        )


def _listed(interfaces: Sequence[Interface]) -> str:
    names = [f"{nic.name} {' '.join(nic.ipv4) or 'without IPv4'}" for nic in interfaces if not nic.loopback]
    return ", ".join(names) or "no NIC at all"


@check("subnet-overlap", severity=Severity.WARN)
def subnet_overlap(fleet: FleetFacts) -> Iterator[Problem]:
    """No host has two NICs in one subnet.

    Linux answers ARP for any of its addresses on any of its NICs, and sends by whichever route comes first:
    traffic meant for one NIC takes the other.
    """
    for host, facts in fleet.answers():
        nics = [nic for nic in facts.interfaces if nic.up and not nic.loopback]
        for index, nic in enumerate(nics):
            for other in nics[:index]:
                shared = _shared_subnet(other, nic)
                if shared is not None:
                    yield Problem(
                        hosts=(host.name,),
                        message=f"{other.name} and {nic.name} are both in {shared}",
                        found=f"{other.name} {' '.join(other.ipv4)}, {nic.name} {' '.join(nic.ipv4)}",
                        expected="one NIC a subnet, or a bond of them",
                        fix=f"move one to another subnet, or bond them; at least: sudo sysctl -w "
                        f"net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2, "
                        f"and a source rule for {nic.name}",
                    )


def _shared_subnet(one: Interface, other: Interface) -> str | None:
    """A network that holds addresses of both. A /32 is a point-to-point link's, and no subnet."""
    ours, theirs = ([ipaddress.ip_interface(each) for each in nic.ipv4] for nic in (one, other))
    for mine in ours:
        for yours in theirs:
            narrower = max(mine.network, yours.network, key=lambda network: network.prefixlen)
            if narrower.prefixlen < 32 and mine.ip in yours.network and yours.ip in mine.network:
                return str(narrower)
    return None


@network_check("nic-speed", severity=Severity.WARN)
def nic_speed(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """The training NICs all run at one link speed.

    A collective is as fast as the slowest link in it. Judged by the majority, where the driver tells a speed.
    """
    nics = network.working()
    yield from by_majority(
        Subject(
            name="the speed of the training NIC",
            pin="nic-speed",
            fix=lambda host, _: (
                f"look at cable, switch port and autonegotiation: ethtool {nics[host].interface.name}"
            ),
            exactly=str,
            settle=lambda speed: f"{speed} on every link",
        ),
        {
            host: f"{choice.interface.speed} Mbit/s"
            for host, choice in nics.items()
            if choice.interface.speed is not None
        },
    )


@network_check("nic-errors", severity=Severity.WARN)
def nic_errors(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """The training NICs have counted hardly any errors and drops.

    Counted since the interface came up. Errors: more than 10, and than one in 100,000 packets. Drops: more
    than 1000, and than one in 100.
    """
    for host, choice in network.working().items():
        traffic = choice.interface.traffic
        if traffic is None:
            continue
        for way, packets, errors, drops in (
            ("receiving", traffic.received, traffic.receive_errors, traffic.receive_drops),
            ("sending", traffic.sent, traffic.send_errors, traffic.send_drops),
        ):
            for what, count, least, rate in (
                ("errors", errors, _ERRORS, _ERROR_RATE),
                ("drops", drops, _DROPS, _DROP_RATE),
            ):
                if count > least and count > rate * packets:
                    yield _too_many(host, choice.interface.name, f"{count} {what} {way}", packets)


def _too_many(host: str, nic: str, counted: str, packets: int) -> Problem:
    return Problem(
        hosts=(host,),
        message=f"{nic} has counted {counted}, of {packets} packets",
        found=counted,
        expected="next to none",
        fix=f"see which, and whether they grow: ethtool -S {nic} | grep -iE 'err|drop|crc'; "
        f"then cable, transceiver, ring size (ethtool -g {nic})",
    )


@check("hostname-loopback", severity=Severity.WARN)
def hostname_loopback(fleet: FleetFacts) -> Iterator[Problem]:
    """The host's own name resolves there to an address by which others can reach it.

    Debian's installer writes 127.0.1.1 into /etc/hosts. gloo resolves the name where GLOO_SOCKET_IFNAME is
    not set, and then offers that address to its peers. `mnt` sets it; what is started by other means may not.
    """
    for host, facts in fleet.answers():
        if facts.resolved is None:
            continue
        addresses = facts.resolved.addresses
        if addresses and all(ipaddress.ip_address(address).is_loopback for address in addresses):
            message, found = f"{facts.hostname} resolves to a loopback address", ", ".join(addresses)
        elif not addresses:
            message, found = f"{facts.hostname} does not resolve", facts.resolved.error or "no address"
        else:
            continue
        yield Problem(
            hosts=(host.name,),
            message=message,
            found=found,
            expected="an address in the training network",
            fix=f"in /etc/hosts give {facts.hostname} the address of the training NIC, not 127.0.1.1",
        )
