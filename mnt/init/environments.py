"""The interpreter for an inventory that names none yet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from mnt.facts.host import HostFacts
from mnt.facts.survey import Environment, Survey
from mnt.inventory.hostlist import brief
from mnt.paths import part_below

TRAINS_WITH = ("torch", "deepspeed", "transformers")  # what is looked up, the most important first
_MOST_NOTES = 8
_KINDS = {"venv": "a venv with", "conda": "a conda environment with", "system": "the system's"}


@dataclass(frozen=True)
class Choice:
    """An interpreter that every host has. `packages`: those with one version on all of them."""

    python: str
    reason: str
    packages: Mapping[str, str] = field(default_factory=dict)
    missing: bool = False  # no host has it yet
    notes: tuple[str, ...] = ()  # what single hosts say, for the user, with their names


@dataclass(frozen=True)
class _Found:
    """What a path is on one host."""

    kind: str
    version: str
    packages: Mapping[str, str]


def choose(facts: Mapping[str, HostFacts], surveys: Mapping[str, Survey], new: str) -> Choice:
    """The interpreter that all hosts have and that has most of what trains; else `new`.

    What only some of the hosts have does not count: one host does not choose what the others run. Nor does
    what another user of a host could have written: the reason names it if all hosts say the same of it, else
    a note does, as the word of these hosts.

    Args:
        facts, surveys: of the hosts that answered.
        new: an interpreter that is still to be made.
    """
    per_host = [_on(facts[host], surveys[host]) for host in surveys]
    common = set(per_host[0]).intersection(*per_host[1:]) if per_host else set()
    ranked = sorted(common, key=lambda path: (_rank([found[path] for found in per_host]), path), reverse=True)
    best = ranked[0] if ranked else None
    foreign, notes = _foreign(surveys)
    if best is None or not _same(best, per_host).get("torch"):
        why = f"{_without_torch(surveys)}: `mnt setup environment` makes it{foreign}"
        return Choice(new, why, missing=True, notes=notes)
    packages = _same(best, per_host)
    what = f"{_KINDS[per_host[0][best].kind]} Python {per_host[0][best].version}"
    has = ", ".join(f"{name} {version}" for name, version in packages.items())
    others = len(ranked) - 1
    instead = f"; {others} more interpreter{'s are' if others > 1 else ' is'} on all hosts" if others else ""
    return Choice(best, f"{what}, {has}{instead}{foreign}", packages, notes=notes)


def _on(facts: HostFacts, survey: Survey) -> dict[str, _Found]:
    """The interpreters of a host by path; `~` is the user's home, which may be another on each host."""
    found = {}
    for each in _own(survey):
        part = part_below(each.path, facts.home)
        path = each.path if part is None else f"~/{part}"
        found[path] = _Found(each.kind, each.version, each.packages)
    if facts.python is not None and facts.python.executable not in found:
        found[facts.python.executable] = _Found("system", facts.python.version, facts.packages)
    return found


def _own(survey: Survey) -> list[Environment]:
    """Those that only the user who logs in, and root, could have written."""
    return [each for each in survey.environments if each.exposed is None]


def _foreign(surveys: Mapping[str, Survey]) -> tuple[str, tuple[str, ...]]:
    """What is left out although it has torch: for the reason, if all hosts say it, else as notes."""
    said: dict[str, list[str]] = {}
    for host, survey in surveys.items():
        texts = [
            f"{each.path} is not taken: {each.exposed} (if you trust that user, set `python` to it, and "
            "`python_owner`)"
            for each in survey.environments
            if each.exposed is not None and "torch" in each.packages
        ]
        for text in dict.fromkeys(texts):
            said.setdefault(text, []).append(host)
    for text, hosts in said.items():
        if len(hosts) == len(surveys) > 1:
            return f"; {text}", ()
    first = {hosts[0]: (hosts, text) for text, hosts in reversed(said.items())}  # one of each host
    notes = [f"{brief(hosts)} say{'s' * (len(hosts) == 1)}: {text}" for hosts, text in first.values()]
    return "", tuple(notes[:_MOST_NOTES])


def _rank(found: list[_Found]) -> tuple[object, ...]:
    """The better, the larger: has what trains, in one version, and the newest torch and Python."""
    has = [all(name in each.packages for each in found) for name in TRAINS_WITH]
    same = [len({each.packages.get(name) for each in found}) == 1 for name in TRAINS_WITH]
    torch = min(_number(each.packages.get("torch", "0")) for each in found)
    return (
        has[0] and same[0],
        has[0],
        *has[1:],
        *same[1:],
        torch,
        min(_number(each.version) for each in found),
    )


def _number(version: str) -> Version:
    try:
        return Version(version[:100])
    except InvalidVersion:
        return Version("0")


def _same(path: str, per_host: list[dict[str, _Found]]) -> dict[str, str]:
    """The packages that all hosts have in one version there."""
    versions = {name: {found[path].packages.get(name) for found in per_host} for name in TRAINS_WITH}
    return {
        canonicalize_name(name): version
        for name, some in versions.items()
        if len(some) == 1 and (version := next(iter(some)))
    }


def _without_torch(surveys: Mapping[str, Survey]) -> str:
    having = [
        host for host, survey in surveys.items() if any("torch" in each.packages for each in _own(survey))
    ]
    if not having:
        return "no environment with torch was found"
    path = next(each.path for each in _own(surveys[having[0]]) if "torch" in each.packages)
    return f"no environment with one version of torch is on all hosts: {brief(having)} has {path}"
