"""What a launch has to know of its hosts before it can plan: one probe and one look at the releases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mnt.errors import HostError, NeverStarted
from mnt.inventory.hostlist import fold
from mnt.launch.plan import HeldRelease, NodeFacts
from mnt.preflight.findings import Severity
from mnt.preflight.look import first_look
from mnt.preflight.registry import FURTHER_TRIPS, select
from mnt.preflight.report import run_checks
from mnt.tasks.push import find_release

if TYPE_CHECKING:
    from mnt.facts.fleet import FleetFacts
    from mnt.facts.host import HostFacts
    from mnt.fleet import Fleet
    from mnt.inventory.model import Host, Inventory
    from mnt.network.decision import NetworkDecision
    from mnt.preflight.findings import Finding
    from mnt.tasks.push import FoundRelease


def launch_facts(
    fleet: Fleet, inventory: Inventory, hosts: Sequence[Host], *, preflight: bool = True
) -> tuple[dict[str, NodeFacts], NetworkDecision]:
    """What the plan needs of each host, and the network of the job.

    Args:
        preflight: refuse what the checks say no to, as far as they judge what the probe found anyway.

    Raises:
        NeverStarted: a host cannot be reached, or did not answer, or a check fails.
    """
    found, network = first_look(fleet, inventory, hosts)
    releases = fleet.run(find_release, None)
    errors = {**found.errors, **releases.errors(), **_without_home(found)}
    if errors:
        first = next(iter(errors.values()))
        raise NeverStarted("; ".join(error.message for error in errors.values()), fix=first.fix)
    if preflight:
        _refuse_unfit(found, network)
    held = releases.values_by_host()
    nodes = {
        host.name: NodeFacts(
            home=_home(found.facts[host.name]) or "",
            release=_held(held[host.name]),
            clock_offset=found.facts[host.name].clock_offset,
        )
        for host in hosts
    }
    return nodes, network


def _refuse_unfit(found: FleetFacts, network: NetworkDecision) -> None:
    """Raises NeverStarted where preflight would answer no."""
    failed = unfit(found, network)
    if failed:
        listed = "; ".join(f"{each.check}: {fold(each.hosts)}: {each.message}" for each in failed)
        raise NeverStarted(
            f"not fit to train: {listed}",
            fix=f"{failed[0].fix}; mnt preflight says more, --no-preflight starts all the same",
        )


def unfit(found: FleetFacts, network: NetworkDecision) -> list[Finding]:
    """What fails of the checks that the probe alone can feed."""
    checks = [check for check in select() if check.needs not in FURTHER_TRIPS]
    findings = run_checks(found, network, checks).findings
    return [finding for finding in findings if finding.severity is Severity.FAIL]


def _held(found: FoundRelease) -> HeldRelease | None:
    if found["current"] is None or found["path"] is None:
        return None
    return HeldRelease(found["current"], found["path"], found["manifest_sha"])


def _without_home(found: FleetFacts) -> dict[str, HostError]:
    """Hosts where no interpreter could say where the user's files go."""
    return {
        name: HostError(name, "command", "no Python 3.8 or newer answered", fix="mnt preflight")
        for name, facts in found.facts.items()
        if _home(facts) is None
    }


def _home(facts: HostFacts) -> str | None:
    return facts.login.home if facts.login else None
