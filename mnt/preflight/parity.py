"""Do all hosts have the same value? The inventory's pin decides, else the majority of the hosts. Pure.

A fix contains only values that at least two hosts have: what one host says of itself does not become a
command for another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from mnt.facts.fleet import FleetFacts
from mnt.inventory.hostlist import fold, group
from mnt.preflight.findings import Problem, Severity

ABSENT = "not installed"

_LONGEST_VERSION = 500  # characters; of 4,301 digits, int() makes no number


class Subject(NamedTuple):
    """The value that is compared."""

    name: str  # for people: `torch`, `Python`
    fix: Callable[[str, str | None], str]  # (host, specifier; None: it must be absent) -> fix
    pin: str = ""  # its key in `require`; empty: it has none, and needs `tie_fix`
    normalize: Callable[[str], str] = str  # value -> the form in which two values are compared
    pin_value: Callable[[str], str] = "=={}".format  # value -> the specifier that pins it
    tie_fix: str | None = None  # the fix for a tie; None: a pin in `require`


def parity(
    fleet: FleetFacts,
    subject: Subject,
    values: Mapping[str, str | None],
    *,
    severity: Severity | None = None,
) -> Iterator[Problem]:
    """The hosts whose value differs. `values` are versions by host; None: not installed."""
    pin = pinned(fleet, subject.pin)
    if pin is None:
        yield from by_majority(subject, values, severity)
        return
    for host, value in values.items():
        if value is None or not satisfies(value, pin):
            found = value or ABSENT
            yield Problem(
                hosts=(host,),
                message=f"{subject.name} is {found}, but the inventory requires {pin}",
                found=found,
                expected=f"{pin} (inventory: require)",
                fix=subject.fix(host, pin),
            )


def pinned(fleet: FleetFacts, name: str) -> str | None:
    """The inventory's `require` for a name, in any spelling; None: it has none."""
    for key, specifier in fleet.inventory.require.items():
        if canonicalize_name(key) == canonicalize_name(name):
            return specifier
    return None


def satisfies(version: str, specifier: str) -> bool:
    """By PEP 440. Pre-releases are accepted, because people train with nightly builds."""
    if len(version) > _LONGEST_VERSION:
        return False
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def by_majority(
    subject: Subject, values: Mapping[str, str | None], severity: Severity | None = None
) -> Iterator[Problem]:
    groups = _groups(subject, values)
    if len(groups) < 2:
        return
    (usual, majority), (_, second) = groups[:2]
    if len(majority) == len(second):
        yield _tie(subject, groups, values, severity)
        return
    shared = usual if _shared(usual, values) else subject.normalize(usual)
    for found, hosts in groups[1:]:
        for host in hosts:
            yield Problem(
                hosts=(host,),
                message=f"{subject.name} is {found}; on {len(majority)} of {len(values)} hosts it is {usual}",
                found=found,
                expected=f"{usual}, as on {fold(majority)}",
                fix=subject.fix(host, None if usual == ABSENT else subject.pin_value(shared)),
                severity=severity,
            )


def _shared(found: str, values: Mapping[str, str | None]) -> bool:
    """Whether at least two hosts have exactly this value."""
    return sum(value == found for value in values.values()) > 1


def _groups(subject: Subject, values: Mapping[str, str | None]) -> list[tuple[str, tuple[str, ...]]]:
    """(value, hosts that have it), the largest group first; among equals, the group with the first host."""
    normal = {host: None if value is None else subject.normalize(value) for host, value in values.items()}
    return [
        (Counter(values[host] or ABSENT for host in hosts).most_common(1)[0][0], hosts)
        for hosts in sorted(group(normal), key=len, reverse=True)
    ]


def _tie(
    subject: Subject,
    groups: list[tuple[str, tuple[str, ...]]],
    values: Mapping[str, str | None],
    severity: Severity | None,
) -> Problem:
    shared = [found for found, _ in groups if found != ABSENT and _shared(found, values)]
    pin = subject.pin_value(shared[0]) if shared else "==VERSION"
    listed = "; ".join(f"{found} on {fold(hosts)}" for found, hosts in groups)
    return Problem(
        hosts=tuple(host for _, hosts in groups for host in hosts),
        message=f"there is no majority: {subject.name} is {listed}",
        found=listed,
        expected="the same on every host",
        fix=subject.tie_fix or f'decide in the inventory, for example require: {{{subject.pin}: "{pin}"}}',
        severity=severity,
    )
