"""What a push decides: which hosts share a workdir, which release all end at, how each gets it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mnt.push.manifest import Entry


@dataclass(frozen=True)
class Survey:
    """What lies in one workdir."""

    current: str | None
    taken: tuple[str, ...]  # ids of all releases there
    holds: Mapping[str, bool]  # releases of this very tree -> whether they are intact


@dataclass(frozen=True)
class Delivery:
    """How one workdir gets the release.

    `adopt`: it is there. `copy`: another release of the same tree is. `stage`: by a stream.
    """

    how: str
    source: str | None = None  # for `copy`: the release to copy


def likely_shared(marks: Mapping[str, Sequence[int] | None]) -> dict[str, list[str]]:
    """For each host the others that may share its workdir: those with its mark (inode, size of the disk).

    Only a nonce proves it. The mark tells for whom it is worth waiting until a nonce appears; None: nobody.
    """
    return {
        host: [other for other in marks if other != host and mark is not None and marks[other] == mark]
        for host, mark in marks.items()
    }


def leaders(sees: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Host -> the first host, in the order of `sees`, of those that share its workdir.

    Args:
        sees: host -> the hosts whose nonce is in its workdir. One that sees, or is seen, shares.
    """
    groups: list[set[str]] = []
    for host, seen in sees.items():
        group = {host, *seen}
        touching = [other for other in groups if other & group]
        groups = [other for other in groups if other not in touching] + [group.union(*touching)]
    return {host: next(first for first in sees if first in group) for group in groups for host in group}


def choose_release(surveys: Iterable[Survey], sha: str, now: datetime) -> str:
    """The release that all hosts shall end at.

    One of the same tree that is intact somewhere and nowhere damaged; of several the one that is `current` on
    most hosts, then the newest. Else a new one: `YYYYmmdd-HHMMSS-` and the first 8 digits of the hash.

    Args:
        now: UTC.
    """
    surveys = list(surveys)
    taken = {release for survey in surveys for release in survey.taken}
    intact = {release for survey in surveys for release, whole in survey.holds.items() if whole}
    damaged = {r for survey in surveys for r in survey.taken if not survey.holds.get(r, False)}
    usable = intact - damaged
    if usable:
        current = Counter(survey.current for survey in surveys)
        return max(usable, key=lambda release: (current[release], release))
    while (release := f"{now:%Y%m%d-%H%M%S}-{sha[:8]}") in taken:
        now += timedelta(seconds=1)
    return release


def deliver(survey: Survey, release: str) -> Delivery:
    """How a workdir gets the release."""
    if survey.holds.get(release, False):
        return Delivery("adopt")
    intact = [held for held, whole in survey.holds.items() if whole]
    return Delivery("copy", max(intact)) if intact else Delivery("stage")


def in_the_way(entries: Iterable[Entry], directory: str) -> str | None:
    """What of a tree keeps `directory` from being a link to shared/; None: nothing does.

    It may be missing, or be an empty directory, or one that holds nothing but a .gitkeep.
    """
    for entry in entries:
        above = entry.path == "" or directory.startswith(entry.path + "/")
        inside = entry.path.startswith(directory + "/")
        if (above or entry.path == directory) and entry.kind != "dir":
            return entry.path
        if inside and entry.path != f"{directory}/.gitkeep":
            return entry.path
    return None
