"""The registry of the checks. `@check` registers a function of `mnt/preflight/checks/` as a check."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import TypeVar

from mnt.errors import UsageError
from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.inventory.model import Host
from mnt.inventory.spelling import did_you_mean
from mnt.network.decision import NetworkDecision
from mnt.preflight import checks as families
from mnt.preflight.findings import Finding, Problem, Severity

Judge = Callable[[FleetFacts], Iterator[Problem]]
HostJudge = Callable[[Host, HostFacts], Iterator[Problem]]
NetworkJudge = Callable[[FleetFacts, NetworkDecision], Iterator[Problem]]
AnyJudge = TypeVar("AnyJudge", bound=Callable[..., Iterator[Problem]])


class Needs(Enum):
    """What must be known of a host so that a check can judge it. The check gets the facts of these hosts."""

    NOTHING = "nothing"  # the check also judges unreachable hosts
    ANSWER = "an answer"  # the host answered, even if it has no Python
    PROBE = "the probe"  # an interpreter ran the probe
    PACKAGES = "packages"  # the configured interpreter ran the probe, so its packages are known
    MESH = "the mesh"  # the master tried to log in to the host
    VISIBILITY = "the visibility"  # the host wrote a file to shared storage, or looked for one
    REACH = "the reach"  # the host was asked to listen on the training network and to connect to the others
    TRIAL = "a trial run"  # the host was asked to take part in the trial of `--deep`


# What the probe alone does not provide: the hosts are asked again.
FURTHER_TRIPS = frozenset({Needs.MESH, Needs.VISIBILITY, Needs.REACH, Needs.TRIAL})

# The hosts of which that is known.
_KNOWN: dict[Needs, Callable[[FleetFacts], Iterable[str]]] = {
    Needs.NOTHING: lambda fleet: (host.name for host in fleet.hosts),
    Needs.ANSWER: lambda fleet: fleet.facts,
    Needs.PROBE: lambda fleet: (name for name, facts in fleet.facts.items() if facts.python),
    Needs.PACKAGES: lambda fleet: (name for name, facts in fleet.facts.items() if facts.trains_with),
    Needs.MESH: lambda fleet: fleet.mesh,
    Needs.VISIBILITY: lambda fleet: (
        host for test in fleet.visibility.values() for host in (test.writer, *test.sightings)
    ),
    Needs.REACH: lambda fleet: fleet.reach.nics,
    Needs.TRIAL: lambda fleet: fleet.trial.hosts if fleet.trial and fleet.trial.obstacle is None else (),
}


@dataclass(frozen=True)
class Check:
    """A pure function over facts, and its documentation, which is the function's docstring."""

    id: str
    severity: Severity  # the severity of its findings, unless a problem has its own
    needs: Needs
    judge: NetworkJudge
    family: str  # the name of its module
    summary: str  # the first paragraph of the docstring
    details: str  # the other paragraphs; may be empty
    playbook: str | None = None  # of `mnt setup`, which mends what the check finds

    def judges(self, fleet: FleetFacts) -> frozenset[str]:
        """The hosts that the check can judge."""
        return frozenset(_KNOWN[self.needs](fleet))

    def run(self, fleet: FleetFacts, network: NetworkDecision) -> list[Finding]:
        """The findings. The same problem on several hosts is one finding, with its hosts in rank order.

        A name that is no selected host is left out: a host may have said it.
        """
        judged = self.judges(fleet)
        known = {name: facts for name, facts in fleet.facts.items() if name in judged}
        hosts: dict[Problem, list[str]] = {}
        for problem in self.judge(replace(fleet, facts=known), network):
            hosts.setdefault(replace(problem, hosts=()), []).extend(problem.hosts)
        rank = {host.name: i for i, host in enumerate(fleet.hosts)}
        return [
            Finding(
                check=self.id,
                severity=problem.severity or self.severity,
                hosts=tuple(sorted(rank.keys() & set(names), key=rank.__getitem__)),
                found=problem.found,
                expected=problem.expected,
                message=problem.message,
                fix=problem.fix,
                playbook=self.playbook if problem.playbook == "" else problem.playbook,
            )
            for problem, names in hosts.items()
        ]


_REGISTERED: dict[str, Check] = {}

# All other checks depend on the login, so these two run with every selection.
_ALWAYS = ("ssh", "host-key")


def check(
    id: str,
    *,
    severity: Severity = Severity.FAIL,
    needs: Needs = Needs.PROBE,
    playbook: str | None = None,
) -> Callable[[Judge], Judge]:
    """Register a function over the facts of all hosts as a check.

    Args:
        id: the stable name of the check, `torch-version`.
        severity: of its findings, unless a problem has its own.
        needs: what must be known of a host; the function gets the facts of such hosts only.
        playbook: the one of `mnt setup` that mends what it finds; None: there is none.
    """
    return _register(id, severity, needs, playbook, lambda judge: lambda fleet, network: judge(fleet))


def host_check(
    id: str,
    *,
    severity: Severity = Severity.FAIL,
    needs: Needs = Needs.PROBE,
    playbook: str | None = None,
) -> Callable[[HostJudge], HostJudge]:
    """Register a function over one host as a check; arguments as for `check`.

    Its problems need no `hosts`: they are problems of that host.
    """

    def adapt(judge: HostJudge) -> NetworkJudge:
        return lambda fleet, network: (
            replace(problem, hosts=(host.name,))
            for host, facts in fleet.answers()
            for problem in judge(host, facts)
        )

    return _register(id, severity, needs, playbook, adapt)


def network_check(
    id: str,
    *,
    severity: Severity = Severity.FAIL,
    needs: Needs = Needs.PROBE,
    playbook: str | None = None,
) -> Callable[[NetworkJudge], NetworkJudge]:
    """Register a function over facts and the network decision as a check; arguments as for `check`."""
    return _register(id, severity, needs, playbook, lambda judge: judge)


def _register(
    id: str,
    severity: Severity,
    needs: Needs,
    playbook: str | None,
    adapt: Callable[[AnyJudge], NetworkJudge],
) -> Callable[[AnyJudge], AnyJudge]:
    def register(judge: AnyJudge) -> AnyJudge:
        if id in _REGISTERED:
            raise ValueError(f"two checks are named {id}")
        family = judge.__module__.removeprefix(f"{families.__name__}.")
        summary, _, details = inspect.cleandoc(judge.__doc__ or "").partition("\n\n")
        summary = " ".join(summary.split())
        _REGISTERED[id] = Check(id, severity, needs, adapt(judge), family, summary, details.strip(), playbook)
        return judge

    return register


@cache
def all_checks() -> tuple[Check, ...]:
    """Every check, family by family, in the order of `mnt.preflight.checks.ORDER`."""
    for module in pkgutil.iter_modules(families.__path__, f"{families.__name__}."):
        importlib.import_module(module.name)
    return tuple(sorted(_REGISTERED.values(), key=lambda item: families.ORDER.index(item.family)))


def select(*, only: Sequence[str] = (), skip: Sequence[str] = (), deep: bool = False) -> tuple[Check, ...]:
    """The checks to run, in order.

    Args:
        only: run these checks and the checks of the login; empty: run all checks.
        skip: leave out these checks.
        deep: include the checks of a trial run, which otherwise run only if `only` names them.

    Raises:
        UsageError: there is no check with such an id.
    """
    ids = [item.id for item in all_checks()]
    for name in (*only, *skip):
        if name not in ids:
            raise UsageError(
                f"there is no check {name!r}{did_you_mean(name, ids)}", fix=f"use one of {', '.join(ids)}"
            )
    trials = {item.id for item in all_checks() if item.needs is Needs.TRIAL}
    selected = {*only, *_ALWAYS} if only else {*ids} - trials
    selected |= trials if deep else set()
    return tuple(item for item in all_checks() if item.id in selected and item.id not in skip)
