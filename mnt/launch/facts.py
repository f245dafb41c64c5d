"""What a launch has to know of its hosts before it can plan: one probe, and one look at the releases."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mnt.errors import HostError, NeverStarted
from mnt.inventory.hostlist import fold
from mnt.launch.plan import CodeTree, NodeFacts
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


@dataclass(frozen=True)
class Refusal:
    """Why a job would not start."""

    message: str
    fix: str | None


@dataclass(frozen=True)
class LaunchFacts:
    nodes: dict[str, NodeFacts]
    network: NetworkDecision
    unfit: tuple[Refusal, ...]  # what the checks say no to, as far as they judge what the probe found anyway


def launch_facts(
    fleet: Fleet, inventory: Inventory, hosts: Sequence[Host], *, preflight: bool = True
) -> LaunchFacts:
    """What the plan needs of each host, the network of the job, and what speaks against it.

    Args:
        preflight: let the checks judge.

    Raises NeverStarted: a host cannot be reached, or did not answer.
    """
    found, network = first_look(fleet, inventory, hosts)
    releases = fleet.run(find_release)
    _require_answers({**found.errors, **releases.errors(), **_without_home(found)})
    held = releases.values_by_host()
    nodes = {host.name: _node(found, host, _tree(held[host.name])) for host in hosts}
    refusals = (
        Refusal(f"{each.check}: {fold(each.hosts)}: {each.message}", each.fix)
        for each in (unfit(found, network) if preflight else ())
    )
    return LaunchFacts(nodes, network, tuple(refusals))


def facts_here(
    fleet: Fleet, inventory: Inventory, hosts: Sequence[Host], *, preflight: bool = True
) -> LaunchFacts:
    """The same for a job on this machine alone: the tree runs where it stands, no check of a cluster holds.

    Raises NeverStarted: no Python answered.
    """
    found, network = first_look(fleet, inventory, hosts)
    _require_answers({**found.errors, **_without_home(found)})
    nodes = {
        host.name: _node(found, host, CodeTree(os.path.abspath(host.workdir)), count_gpus=True)
        for host in hosts
    }
    unfit = (_unfit_here(host, found.facts[host.name]) for host in hosts) if preflight else ()
    return LaunchFacts(nodes, network, tuple(refusal for refusal in unfit if refusal is not None))


def _unfit_here(host: Host, facts: HostFacts) -> Refusal | None:
    python = " ".join(host.python)
    if facts.trains_with is None:
        why = f": {facts.python.why}" if facts.python and facts.python.why else ""
        return Refusal(f"{host.name}: {python} does not run{why}", "name another interpreter: --python PATH")
    if "torch" not in facts.packages:
        return Refusal(
            f"{host.name}: {python} has no torch",
            f"{python} -m pip install torch, or name an interpreter that has it: --python PATH",
        )
    return None


def _require_answers(errors: Mapping[str, HostError]) -> None:
    if errors:
        first = next(iter(errors.values()))
        raise NeverStarted("; ".join(error.message for error in errors.values()), fix=first.fix)


def _node(found: FleetFacts, host: Host, tree: CodeTree | None, *, count_gpus: bool = False) -> NodeFacts:
    facts = found.facts[host.name]
    gpus = len(facts.gpus.found) if count_gpus and facts.gpus else None
    return NodeFacts(_home(facts) or "", tree, facts.clock_offset, gpus)


def unfit(found: FleetFacts, network: NetworkDecision) -> list[Finding]:
    """What fails of the checks that the probe alone can feed."""
    checks = [check for check in select() if check.needs not in FURTHER_TRIPS]
    findings = run_checks(found, network, checks).findings
    return [finding for finding in findings if finding.severity is Severity.FAIL]


def _tree(found: FoundRelease) -> CodeTree | None:
    if found["current"] is None or found["path"] is None:
        return None
    return CodeTree(found["path"], found["current"], found["manifest_sha"])


def _without_home(found: FleetFacts) -> dict[str, HostError]:
    """Hosts where no interpreter could say where the user's files go."""
    return {
        name: HostError(name, "command", "no Python 3.8 or newer answered", fix="mnt preflight")
        for name, facts in found.facts.items()
        if _home(facts) is None
    }


def _home(facts: HostFacts) -> str | None:
    return facts.login.home if facts.login else None
