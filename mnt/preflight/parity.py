"""Is it the same everywhere? The inventory's pin decides, else the majority of the hosts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from mnt.facts.fleet import FleetFacts
from mnt.inventory.hostlist import fold
from mnt.preflight.findings import Problem, Severity

ABSENT = "not installed"


class Subject(NamedTuple):
    """What is compared."""

    name: str  # for people: `torch`, `Python`
    pin: str  # the key of `require`
    fix: Callable[[str, str | None], str]  # host, specifier (None: be rid of it) -> how to bring it there
    same: Callable[[str], str] = str  # version -> the form in which two of them are compared
    exactly: Callable[[str], str] = "=={}".format  # version -> the specifier that pins it
    settle: Callable[[str], str] | None = (
        None  # version -> the inventory's words that settle a tie; None: a pin
    )


def parity(
    fleet: FleetFacts,
    subject: Subject,
    values: Mapping[str, str | None],
    *,
    severity: Severity | None = None,
) -> Iterator[Problem]:
    """What differs among `values`: versions by host, None where it is not installed."""
    pin = pinned(fleet, subject.pin)
    if pin is not None:
        yield from against_pin(subject, pin, values)
    else:
        yield from by_majority(subject, values, severity)


def pinned(fleet: FleetFacts, name: str) -> str | None:
    """The inventory's `require` of that name, in any spelling."""
    for key, specifier in fleet.inventory.require.items():
        if canonicalize_name(key) == canonicalize_name(name):
            return specifier
    return None


def against_pin(subject: Subject, pin: str, values: Mapping[str, str | None]) -> Iterator[Problem]:
    for host, value in values.items():
        if value is None or not satisfies(value, pin):
            found = value or ABSENT
            yield Problem(
                hosts=(host,),
                message=f"{subject.name} is {found}, and the inventory requires {pin}",
                found=found,
                expected=f"{pin} (inventory: require)",
                fix=subject.fix(host, pin),
            )


def satisfies(version: str, specifier: str) -> bool:
    """PEP 440; a pre-release counts, for nightly builds are what people train with."""
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def by_majority(
    subject: Subject, values: Mapping[str, str | None], severity: Severity | None = None
) -> Iterator[Problem]:
    camps = _camps(subject, values)
    if len(camps) < 2:
        return
    (usual, majority), (_, next_best) = camps[:2]
    if len(majority) == len(next_best):
        yield _tie(subject, camps, severity)
        return
    for found, hosts in camps[1:]:
        for host in hosts:
            yield Problem(
                hosts=(host,),
                message=f"{subject.name} is {found}; on {len(majority)} of {len(values)} hosts it is {usual}",
                found=found,
                expected=f"{usual}, as on {fold(majority)}",
                fix=subject.fix(host, None if usual == ABSENT else subject.exactly(usual)),
                severity=severity,
            )


def _camps(subject: Subject, values: Mapping[str, str | None]) -> list[tuple[str, list[str]]]:
    """(what its hosts have, those hosts), the largest camp first; of equals, the one with the first host."""
    hosts: dict[str | None, list[str]] = {}
    for host, value in values.items():
        hosts.setdefault(None if value is None else subject.same(value), []).append(host)
    camps = [
        (Counter(values[host] or ABSENT for host in names).most_common(1)[0][0], names)
        for names in hosts.values()
    ]
    return sorted(camps, key=lambda camp: len(camp[1]), reverse=True)


def _tie(subject: Subject, camps: list[tuple[str, list[str]]], severity: Severity | None) -> Problem:
    standing = "; ".join(f"{found} on {fold(hosts)}" for found, hosts in camps)
    wanted = next(found for found, _ in camps if found != ABSENT)
    words = subject.settle or (lambda version: f'require: {{{subject.pin}: "{subject.exactly(version)}"}}')
    return Problem(
        hosts=tuple(host for _, hosts in camps for host in hosts),
        message=f"a tie, no majority to go by: {subject.name} is {standing}",
        found=standing,
        expected="the same on every host",
        fix=f"decide in the inventory, for instance {words(wanted)}",
        severity=severity,
    )
