"""What a launch needs to know about its hosts before it can plan: one probe, and one look at the releases."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mnt.errors import HostError, NeverStarted
from mnt.inventory.hostlist import fold
from mnt.launch.plan import CodeTree, NodeFacts
from mnt.preflight.checks.versions import pasteable
from mnt.preflight.findings import Severity
from mnt.preflight.look import first_look
from mnt.preflight.registry import FURTHER_TRIPS, select
from mnt.preflight.report import run_checks
from mnt.remote.job.files import user_directory
from mnt.tasks.push import find_release

if TYPE_CHECKING:
    from mnt.facts.fleet import FleetFacts
    from mnt.facts.host import HostFacts
    from mnt.fleet import Fleet
    from mnt.inventory.model import Host, Inventory
    from mnt.network.decision import NetworkDecision
    from mnt.tasks.push import FoundRelease


_REFUSED_ANYWAY = ("file-owner",)  # by the hosts themselves, whatever the checks say


@dataclass(frozen=True)
class LaunchFacts:
    nodes: dict[str, NodeFacts]
    network: NetworkDecision
    inventory: Inventory  # with the master port that the job uses
    notes: tuple[str, ...]  # what people should know of the job
    refusals: tuple[NeverStarted, ...]  # why the checks that need no more than the probe would refuse the job


def launch_facts(
    fleet: Fleet, inventory: Inventory, hosts: Sequence[Host], *, preflight: bool = True
) -> LaunchFacts:
    """Gather what the plan needs to know about each host, the job's network, and the reasons not to start.

    Args:
        preflight: run the checks.

    Raises:
        Untrusted: on a host, another user could exchange the interpreter.
        NeverStarted: a host cannot be reached, or did not answer.
    """
    found, network = first_look(fleet, inventory, hosts)
    _require_trust(found)
    found, notes = _with_free_port(found)
    releases = fleet.run(find_release)
    _require_answers(found, releases.errors())
    trees = {name: _tree(release) for name, release in releases.values_by_host().items()}
    nodes = {host.name: _node(facts, trees[host.name], gpus=None) for host, facts in found.answers()}
    refusals = tuple(_unfit(found, network)) if preflight else ()
    return LaunchFacts(nodes, network, found.inventory, notes, refusals)


def facts_here(
    fleet: Fleet, inventory: Inventory, hosts: Sequence[Host], *, preflight: bool = True, torch: bool = True
) -> LaunchFacts:
    """The same for a job on this machine only: the tree runs in place, and the cluster's checks do not apply.

    Args:
        torch: whether the job needs torch.

    Raises NeverStarted: no Python answered.
    """
    found, network = first_look(fleet, inventory, hosts)
    _require_answers(found, {})
    found, notes = _with_free_port(found)
    nodes = {
        host.name: _node(facts, CodeTree(os.path.abspath(host.workdir)), gpus=_counted(facts))
        for host, facts in found.answers()
    }
    refusals = [_unfit_here(host, facts, torch=torch) for host, facts in found.answers()] if preflight else []
    unfit = tuple(refusal for refusal in refusals if refusal is not None)
    return LaunchFacts(nodes, network, found.inventory, notes, unfit)


def _node(facts: HostFacts, tree: CodeTree | None, *, gpus: int | None) -> NodeFacts:
    """What the plan needs of a host; `gpus` as in NodeFacts."""
    return NodeFacts(
        facts.home,
        _local(facts),
        tree,
        facts.clock_offset,
        gpus=gpus,
        counted=_counted(facts),
        binds_store=facts.binds_store,
        reads_python_path=facts.reads_python_path,
        packages=_packages(facts),
        uid=facts.login.uid if facts.login else None,
        numa_binding=facts.numa_binding,
    )


def _with_free_port(found: FleetFacts) -> tuple[FleetFacts, tuple[str, ...]]:
    """The facts with the master port of a job, and a note if it is not the inventory's: pure.

    It is the next free one if a job of this user's holds that on the master, and nobody has asked for it by
    name. What else listens there is left to `port-free` and to the host.
    """
    network, master = found.inventory.network, found.facts.get(found.master.name)
    listeners = master.listeners if master is not None else None
    if network.port_by_option or master is None or not listeners or master.free_port is None:
        return found, ()
    jobs = [listener.job for listener in listeners if listener.job is not None]
    if len(jobs) < len(listeners):
        return found, ()
    note = (
        f"{found.master.name}: job {jobs[0]} has the master port {network.master_port}:"
        f" this one gets {master.free_port}"
    )
    moved = replace(found.inventory, network=replace(network, master_port=master.free_port))
    facts = {name: replace(each, listeners=None) for name, each in found.facts.items()}
    return replace(found, inventory=moved, facts=facts), (note,)


def _counted(facts: HostFacts) -> int | None:
    """The GPUs of a host that answer; None: it does not say."""
    return len(facts.gpus.usable) if facts.gpus else None


def _packages(facts: HostFacts) -> dict[str, str] | None:
    """The packages of the interpreter that trains; None: it does not run, so they are unknown."""
    return dict(facts.packages) if facts.trains_with else None


def _local(facts: HostFacts) -> str:
    """The directory of the user's jobs that is on this host only."""
    assert facts.login is not None  # noqa: S101 - `_require_answers` has looked
    return user_directory(facts.login.uid)


def _unfit_here(host: Host, facts: HostFacts, *, torch: bool) -> NeverStarted | None:
    python = " ".join(host.python)
    if facts.trains_with is None:
        why = f": {facts.python.problem}" if facts.python and facts.python.problem else ""
        return NeverStarted(
            f"{host.name}: {python} does not run{why}", fix="name another interpreter: --python PATH"
        )
    if torch and "torch" not in facts.packages:
        return NeverStarted(
            f"{host.name}: {python} has no torch",
            fix=f"{pasteable(host.python)} -m pip install torch, "
            "or name an interpreter that has it: --python PATH",
        )
    return None


class Untrusted(NeverStarted):
    """Another user of a host could exchange the interpreter, or what is in its directory."""


def _require_trust(found: FleetFacts) -> None:
    """Raises Untrusted, whatever options there are: nothing is run from there."""
    refused = [
        HostError(
            host.name,
            "command",
            f"{' '.join(host.python)} is not run: {facts.python.refused}",
            fix="mnt preflight --only python-version",
        )
        for host, facts in found.answers()
        if facts.python is not None and facts.python.refused
    ]
    if refused:
        raise Untrusted.because(refused, "hosts failed")


def _require_answers(found: FleetFacts, errors: Mapping[str, HostError]) -> None:
    """Raises NeverStarted if there are errors, or if no interpreter on a host reported the user's home."""
    silent = {
        name: HostError(name, "command", "no Python 3.8 or newer answered", fix="mnt preflight")
        for name, facts in found.facts.items()
        if not (facts.login and facts.login.home)
    }
    failed = list({**found.errors, **errors, **silent}.values())
    if failed:
        raise NeverStarted.because(failed, "hosts failed")


def _unfit(found: FleetFacts, network: NetworkDecision) -> Iterator[NeverStarted]:
    """The failures found by the checks that need no more than the probe."""
    checks = [check for check in select() if check.needs not in FURTHER_TRIPS]
    for finding in run_checks(found, network, checks).findings:
        if finding.severity is Severity.FAIL:
            message = f"{finding.check}: {fold(finding.hosts)}: {finding.message}"
            more = "mnt preflight shows details"
            if finding.check not in _REFUSED_ANYWAY:
                more += ", --no-preflight starts the job anyway"
            yield NeverStarted(message, fix=f"{finding.fix}; {more}")


def _tree(found: FoundRelease) -> CodeTree | None:
    if found["current"] is None or found["path"] is None:
        return None
    return CodeTree(found["path"], found["current"], found["manifest_sha"], found["pushed"])
