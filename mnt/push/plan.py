"""The decisions of a push: which hosts share a workdir, which release to use, how each host gets it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mnt.push.tree import Entry

_TIME = "%Y%m%d-%H%M%S"  # in the id of a release
_SKEW = timedelta(minutes=5)  # between the clocks of two heads


@dataclass(frozen=True)
class Survey:
    """The content of one workdir."""

    current: str | None  # the release that `current` points to
    releases: tuple[str, ...]  # ids of all releases there
    copies: Mapping[str, bool]  # releases with the same tree as the one to push -> whether they are intact


@dataclass(frozen=True)
class Delivery:
    """How one workdir gets the release."""

    step: str  # `adopt`: use it, it is there; `copy`: copy another release of the same tree; `stage`: send it
    source: str | None = None  # for `copy`: the release to copy


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
    named `YYYYmmdd-HHMMSS-` and the first 8 digits of the hash. An id from the future does not count: a host
    could make it, and it would stay the newest for ever.

    Args:
        now: UTC.
    """
    surveys = list(surveys)
    taken = {release for survey in surveys for release in survey.releases}
    intact = {release for survey in surveys for release, whole in survey.copies.items() if whole}
    damaged = {r for survey in surveys for r in survey.releases if not survey.copies.get(r, False)}
    latest = f"{now + _SKEW:{_TIME}}"
    usable = {release for release in intact - damaged if release[: len(latest)] <= latest}
    if usable:
        current = Counter(survey.current for survey in surveys)
        return max(usable, key=lambda release: (current[release], release))
    while (release := f"{now:{_TIME}}-{sha[:8]}") in taken:
        now += timedelta(seconds=1)
    return release


def deliver(survey: Survey, release: str) -> Delivery:
    """How a workdir gets the release."""
    if survey.copies.get(release, False):
        return Delivery("adopt")
    intact = [copy for copy, whole in survey.copies.items() if whole]
    return Delivery("copy", max(intact)) if intact else Delivery("stage")


def in_the_way(entries: Iterable[Entry], directory: str) -> str | None:
    """The entry of a tree that prevents a link from `directory` to shared/; None: nothing prevents it.

    `directory` may be missing in the tree, be empty, or contain only a .gitkeep.
    """
    for entry in entries:
        above = entry.path == "" or directory.startswith(entry.path + "/")
        inside = entry.path.startswith(directory + "/")
        if (above or entry.path == directory) and entry.kind != "dir":
            return entry.path
        if inside and entry.path != f"{directory}/.gitkeep":
            return entry.path
    return None
