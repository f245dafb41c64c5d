"""The decisions of a push: which hosts share a workdir, which release to use, what each host lacks. Pure."""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from mnt.errors import MntError
from mnt.inventory.hostlist import fold
from mnt.push.tree import Entry
from mnt.remote.push.entries import DEEPEST

_TIME = "%Y%m%d-%H%M%S"  # in the id of a release
_SKEW = timedelta(minutes=5)  # between the clocks of two heads


@dataclass(frozen=True)
class Survey:
    """The content of one workdir."""

    current: str | None  # the release that `current` points to
    releases: tuple[str, ...]  # ids of all releases there
    copies: Mapping[str, bool]  # releases with the same tree as the one to push -> whether they are intact
    previous: str | None = None  # the release that was current before


def likely_shared(numbers: Mapping[str, Sequence[int] | None]) -> dict[str, list[str]]:
    """The other hosts that may share the workdir of each host, because their numbers are equal.

    Only a beacon proves that a workdir is shared. Equal numbers mean that it is worth waiting for a beacon.

    Args:
        numbers: by host, (inode of the workdir, size of its disk); None: unknown.
    """
    return {
        host: [other for other in numbers if other != host and own is not None and numbers[other] == own]
        for host, own in numbers.items()
    }


def leaders(sees: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Host -> the first host, in the order of `sees`, that shares its workdir.

    Two hosts share a workdir if each sees the other's beacon: no host can say it alone. A host follows
    another one only if it shares the workdir with that host itself.

    Args:
        sees: host -> the hosts whose beacons are in its workdir.
    """
    seen = {host: set(others) for host, others in sees.items()}
    found: dict[str, str] = {}
    for host in sees:
        shares = (other for other, leader in found.items() if other == leader and mutual(seen, host, other))
        found[host] = next(shares, host)
    return found


def mutual(sees: Mapping[str, Collection[str]], one: str, other: str) -> bool:
    """Whether two hosts see each other's beacons."""
    return other in sees.get(one, ()) and one in sees.get(other, ())


def seen_by_one(sees: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """Host -> the hosts that see its beacon, but whose beacons it does not see.

    Either its cache is late (NFS), or they lie: it has to look again.
    """
    found: dict[str, list[str]] = {}
    for other, beacons in sees.items():
        for host in beacons:
            if host in sees and not mutual(sees, host, other):
                found.setdefault(host, []).append(other)
    return found


def choose_release(surveys: Iterable[Survey], sha: str, now: datetime) -> str:
    """The release that becomes current on all hosts.

    It is an existing release of the same tree that is intact on some host and damaged on none. Among several,
    it is the one that is `current` on most hosts, then the newest. If there is none, it is a new release,
    named `YYYYmmdd-HHMMSS-` and the first 8 digits of the hash, which sorts after all others. An id from the
    future does not count: a host could make it, and it would stay the newest for ever.

    Args:
        now: UTC.
    """
    surveys = list(surveys)
    taken = {release for survey in surveys for release in survey.releases}
    intact = {release for survey in surveys for release, whole in survey.copies.items() if whole}
    damaged = {r for survey in surveys for r in survey.releases if not survey.copies.get(r, False)}
    latest = f"{now + _SKEW:{_TIME}}"
    credible = {release for release in taken if release[: len(latest)] <= latest}
    usable = (intact - damaged) & credible
    if usable:
        current = Counter(survey.current for survey in surveys)
        return max(usable, key=lambda release: (current[release], release))
    newest = max(credible, default="")
    while (release := f"{now:{_TIME}}-{sha[:8]}") in credible or release < newest:
        now += timedelta(seconds=1)
    return release


def has(survey: Survey, release: str) -> bool:
    """Whether a workdir has this release of the tree, intact."""
    return survey.copies.get(release, False)


def lacking(entries: Sequence[Entry], bits: str) -> list[int]:
    """The indexes of the files that a host lacks.

    Args:
        bits: as the host answers to an offer (mnt/remote/push/receive.py).
    """
    lacks = bytes.fromhex(bits)
    return [
        index
        for index, entry in enumerate(entries)
        if entry.kind == "file" and index // 8 < len(lacks) and lacks[index // 8] >> index % 8 & 1
    ]


def choose_target(surveys: Mapping[str, Survey], wanted: str | None) -> str:
    """The release to which a rollback leads on all hosts: the wanted one, else the previous one.

    Raises MntError if a host does not have it, or if the hosts have different previous ones.

    Args:
        surveys: by host.
    """
    if wanted is not None:
        lacking = [host for host, survey in surveys.items() if wanted not in survey.releases]
        if lacking:
            raise MntError(
                f"{fold(lacking)}: there is no release {wanted}", fix="mnt releases lists what there is"
            )
        return wanted
    previous = {host: survey.previous for host, survey in surveys.items()}
    without = [host for host, release in previous.items() if release is None]
    if without:
        raise MntError(f"{fold(without)}: there is no release before the current one", fix="mnt releases")
    if len(set(previous.values())) > 1:
        listed = ", ".join(f"{host} has {release}" for host, release in previous.items())
        raise MntError(
            f"the hosts have different previous releases: {listed}",
            fix="name one that all of them have (mnt releases): mnt rollback ID",
        )
    return str(next(iter(previous.values())))


def in_the_way(entries: Iterable[Entry], directories: Iterable[str]) -> tuple[str, str] | None:
    """The first of the directories that cannot be a link to shared/, and the entry that prevents it.

    A directory may be missing in the tree, be empty, or contain only a .gitkeep.
    """
    kinds = {os.fsencode(entry.path): entry.kind for entry in entries}
    paths = sorted(kinds)
    for directory in directories:
        name = os.fsencode(directory)
        levels = islice((found.start() for found in re.finditer(b"/", name)), DEEPEST)
        above = (b"", *(name[:at] for at in levels), name)
        obstacle = next((each for each in above if kinds.get(each, "dir") != "dir"), None)
        inside = name + b"/"
        first = bisect_left(paths, inside)  # they follow each other
        content = (each for each in paths[first : first + 2] if each.startswith(inside))
        obstacle = obstacle or next((each for each in content if each != inside + b".gitkeep"), None)
        if obstacle is not None:
            return directory, os.fsdecode(obstacle)
    return None
