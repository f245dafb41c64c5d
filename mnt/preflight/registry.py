"""The checks there are, and how one becomes a check: `@check` on a function of `mnt/preflight/checks/`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache

from mnt.errors import UsageError
from mnt.facts.fleet import FleetFacts
from mnt.inventory.spelling import did_you_mean
from mnt.network.decision import NetworkDecision
from mnt.preflight import checks as families
from mnt.preflight.findings import Finding, Problem, Severity

Judge = Callable[[FleetFacts], Iterator[Problem]]
NetworkJudge = Callable[[FleetFacts, NetworkDecision], Iterator[Problem]]


class Needs(Enum):
    """What a check must know of a host before it can judge it; of others it is not told."""

    NOTHING = "nothing"  # it judges unreachable hosts too
    ANSWER = "an answer"  # the host answered, if only to say that it has no Python
    PROBE = "the probe"  # some Python ran the probe
    PACKAGES = "packages"  # the configured interpreter ran it: its packages are known
    MESH = "the mesh"  # the master tried to log in to it
    NONCES = "the nonces"  # it wrote to shared storage, or looked for what another wrote
    REACH = "the reach"  # it was to listen on the training network, and to connect to the others
    TRIAL = "a trial run"  # it was to take part in a launch, for `--deep`


# What the probe alone does not tell: the hosts are asked again.
FURTHER_TRIPS = frozenset({Needs.MESH, Needs.NONCES, Needs.REACH, Needs.TRIAL})


@dataclass(frozen=True)
class Check:
    """A pure function over facts; its docstring is its documentation."""

    id: str
    severity: Severity  # of what it finds, unless the finding says otherwise
    needs: Needs
    judge: NetworkJudge
    function: Callable[..., Iterator[Problem]]  # as it is written: its module and its docstring count

    @property
    def family(self) -> str:
        """The name of its module."""
        return self.function.__module__.rpartition(".")[2]

    @property
    def summary(self) -> str:
        return self._documentation[0]

    @property
    def details(self) -> str:
        """What follows the first line of the docstring; may be empty."""
        return self._documentation[1]

    @property
    def _documentation(self) -> tuple[str, str]:
        summary, _, details = inspect.cleandoc(self.function.__doc__ or "").partition("\n\n")
        return " ".join(summary.split()), details.strip()

    def judges(self, fleet: FleetFacts) -> frozenset[str]:
        """The hosts that it can judge."""
        if self.needs is Needs.NOTHING:
            return frozenset(host.name for host in fleet.hosts)
        if self.needs is Needs.MESH:
            return frozenset(fleet.mesh or ())
        if self.needs is Needs.NONCES:
            nonces = (fleet.nonces or {}).values()
            return frozenset(host for nonce in nonces for host in (nonce.writer, *nonce.seen))
        if self.needs is Needs.REACH:
            return frozenset(fleet.reach.endpoints if fleet.reach else ())
        if self.needs is Needs.TRIAL:
            return frozenset(fleet.trial.hosts if fleet.trial and fleet.trial.untried is None else ())
        return frozenset(
            host.name
            for host, facts in fleet.answers()
            if self.needs is Needs.ANSWER
            or (self.needs is Needs.PROBE and facts.python is not None)
            or (self.needs is Needs.PACKAGES and facts.trains_with is not None)
        )

    def run(self, fleet: FleetFacts, network: NetworkDecision) -> list[Finding]:
        """What it finds. The same problem on several hosts is one finding, in rank order."""
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
                hosts=tuple(sorted(names, key=rank.__getitem__)),
                found=problem.found,
                expected=problem.expected,
                message=problem.message,
                fix=problem.fix,
            )
            for problem, names in hosts.items()
        ]


_REGISTERED: dict[str, Check] = {}

# Every other check rests on the login: these two run whatever is asked for.
_ALWAYS = ("ssh", "host-key")


def check(
    id: str, *, severity: Severity = Severity.FAIL, needs: Needs = Needs.PROBE
) -> Callable[[Judge], Judge]:
    """Make a function over facts a check.

    Args:
        id: its stable name, `torch-version`.
        severity: of what it finds, unless a problem says otherwise.
        needs: what must be known of a host; the function sees the facts of such hosts only.
    """

    def register(judge: Judge) -> Judge:
        _register(Check(id, severity, needs, lambda fleet, network: judge(fleet), judge))
        return judge

    return register


def network_check(
    id: str, *, severity: Severity = Severity.FAIL, needs: Needs = Needs.PROBE
) -> Callable[[NetworkJudge], NetworkJudge]:
    """Make a function over facts and the network decided from them a check; arguments as for `check`."""

    def register(judge: NetworkJudge) -> NetworkJudge:
        _register(Check(id, severity, needs, judge, judge))
        return judge

    return register


def _register(made: Check) -> None:
    assert made.id not in _REGISTERED, f"two checks are called {made.id}"
    _REGISTERED[made.id] = made


@cache
def all_checks() -> tuple[Check, ...]:
    """Every check, family by family, in the order of `mnt.preflight.checks.ORDER`."""
    for module in pkgutil.iter_modules(families.__path__):
        importlib.import_module(f"{families.__name__}.{module.name}")
    return tuple(sorted(_REGISTERED.values(), key=lambda item: families.ORDER.index(item.family)))


def select(*, only: Sequence[str] = (), skip: Sequence[str] = (), deep: bool = False) -> tuple[Check, ...]:
    """The checks to run, in order: all of them, or `only` those and the login that they rest on, less `skip`.

    Those that judge a trial run are among them where they are named, or with `deep`.

    Raises:
        UsageError: an id that no check has.
    """
    ids = [item.id for item in all_checks()]
    _refuse_unknown([*only, *skip], ids)
    trials = {item.id for item in all_checks() if item.needs is Needs.TRIAL}
    wanted = {*only, *_ALWAYS} if only else {*ids} - trials
    wanted |= trials if deep else set()
    return tuple(item for item in all_checks() if item.id in wanted and item.id not in skip)


def _refuse_unknown(asked: Iterable[str], ids: Sequence[str]) -> None:
    for id in asked:
        if id not in ids:
            raise UsageError(
                f"no check is called {id!r}{did_you_mean(id, ids)}", fix=f"checks: {', '.join(ids)}"
            )
