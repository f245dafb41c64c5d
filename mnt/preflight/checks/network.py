"""Is there a NIC for the training traffic?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mnt.inventory.model import Host
from mnt.network.nic import NicChoice, NicProblem, choose
from mnt.preflight.facts import FleetFacts, Interface
from mnt.preflight.findings import Problem
from mnt.preflight.registry import check


@check("nic")
def nic(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host has a training NIC that is up, has link and an IPv4 address.

    Which one it is: the host's `nic`, else the one in `network.subnet`, else `network.nic`, else on a worker
    the one in the subnet of the master's training address, and on the master the one by which the workers
    reach it. A name may be an alternative one. Several candidates are never guessed between.
    """
    interfaces = fleet.interfaces()
    for name, choice in _choices(fleet, fleet.hosts).items():
        if isinstance(choice, NicProblem):
            yield Problem(
                hosts=(name,),
                message=choice.message,
                found=", ".join(choice.candidates) or _listed(interfaces[name]),
                expected="one NIC for the training traffic",
                fix=choice.fix,
            )
        else:
            yield from _judge(name, choice)


def _choices(fleet: FleetFacts, hosts: Sequence[Host]) -> dict[str, NicChoice | NicProblem]:
    """The choice for each host; without the master's problem being that of its workers too."""
    chosen = choose(fleet.inventory, hosts, fleet.interfaces())
    known = [host for host in hosts if host.name in chosen]
    if len(known) > 1 and isinstance(chosen[known[0].name], NicProblem):
        return {known[0].name: chosen[known[0].name], **_choices(fleet, known[1:])}
    return chosen


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
