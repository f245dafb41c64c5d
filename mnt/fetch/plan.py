"""Decide what to do about each file of a host. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from mnt.tasks.fetch import SurveyedPart


class Here(NamedTuple):
    """What is at a file's place on the head. `kind` "other" is anything but a file or a link."""

    kind: Literal["file", "link", "other"]
    size: int = 0
    mtime: int = 0  # ns
    target: str | None = None


_UNITS = (1, 100, 1000, 10**9)  # ns: ext4 and most others; SMB; some of FUSE; ext3, HFS+
Decision = Literal["same", "take", "changed here", "in the way"]


def decide(size: int, mtime: int, here: Here | None, *, overwrite: bool) -> Decision:
    """What to do about a file on a host of that size and time (ns).

    A file here with the same size and time is the same: `mnt fetch` sets the time, of which a file system
    may keep only whole microseconds or seconds. One that is newer than the host's was changed here since.
    """
    if here is None:
        return "take"
    if here.kind != "file":
        return "take" if overwrite and here.kind == "link" else "in the way"
    if here.size == size and any(here.mtime == mtime - mtime % unit for unit in _UNITS):
        return "same"
    return "changed here" if here.mtime > mtime and not overwrite else "take"


def sharers(surveys: Mapping[str, Sequence[SurveyedPart]]) -> dict[str, dict[int, str]]:
    """By host: its parts that a host before it has too, on a shared file system, with that host's name."""
    first: dict[tuple[int, str], str] = {}
    shared: dict[str, dict[int, str]] = {host: {} for host in surveys}
    for host, parts in surveys.items():
        for number, part in enumerate(parts):
            if part["problem"] is None and part["files"]:
                owner = first.setdefault((number, part["digest"]), host)
                if owner != host:
                    shared[host][number] = owner
    return shared
