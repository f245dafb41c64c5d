"""Where the files of the hosts go, below a directory for each host. Pure.

A host's file is written to the place that its name says only if that is inside the host's directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import combinations

from mnt.errors import UsageError
from mnt.tasks.fetch import Pattern

# The directories for the parts of a job (mnt.tasks.fetch.Wanted).
JOB_PLACES = ("release", "shared", "logs")
PART_PREFIX = ".mnt-part-"  # of a file that has not arrived completely
MOST_DIRECTORIES = 100_000  # for the files of one host
_MAGIC = re.compile(r"[*?\[]")


def pattern_of(path: str) -> Pattern:
    """A PATH of the command line: the directory before its first `*`, `?` or `[`, and the rest.

    Raises UsageError for a path that has no place below the host's directory.
    """
    if not path or "\0" in path:
        raise UsageError(f"{path!r} is not a path")
    if ".." in path.split("/"):
        raise UsageError(f"{path}: a path with '..'", fix="name it from / on, or relative to the release")
    if path.startswith("~") and path.partition("/")[0] != "~":
        raise UsageError(f"{path}: the home of another user", fix="name it from / on")
    levels = path.split("/")
    first = next((number for number, level in enumerate(levels) if _MAGIC.search(level)), len(levels))
    above, rest = "/".join(levels[:first]), "/".join(levels[first:])
    if path.startswith("/"):
        above = above or "/"
    return Pattern(above or ".", rest.strip("/"))


def place_of(pattern: Pattern) -> str:
    """The place of a path, relative to the host's directory; "" is that directory.

    `/var/log` is at `var/log`, and `~/x` and `x` are at `x`.
    """
    levels = [level for level in pattern.path.split("/") if level not in ("", ".", "~")]
    return "/".join(levels)


def conflict(patterns: list[Pattern]) -> str | None:
    """A place that two paths share, of which one is relative to something else; None: there is none.

    `/etc` and `etc/x` share `etc`: a file in there could come from both.
    """
    for one, other in combinations(patterns, 2):
        place, inside = sorted((place_of(one), place_of(other)), key=len)
        if _base(one) != _base(other) and f"{inside}/".startswith(place and f"{place}/"):
            return inside or "."
    return None


def _base(pattern: Pattern) -> str:
    """What a path is relative to: `/`, `~`, or the release (``)."""
    return pattern.path[:1] if pattern.path.startswith(("/", "~")) else ""


def below(prefix: str, path: str) -> str | None:
    """The place of a host's file; None: its name leads out of the host's directory, or is none of a file."""
    levels = [*filter(None, prefix.split("/")), *(path.split("/") if path else ())]
    if not levels or any(level in ("", ".", "..") or "\0" in level for level in levels):
        return None
    return None if any(level.startswith(PART_PREFIX) for level in levels) else "/".join(levels)


def count_directories(places: Iterable[str]) -> int:
    """The number of directories above these places. None of them is kept: a host chooses how many there are.

    In sorted order, what is in one directory follows each other.
    """
    count, before = 0, ""
    for place in sorted(places):
        same = os.path.commonprefix([before, place])  # noqa: RUF071 - by character: it may end within a name
        count += place.count("/", len(same))
        before = place
    return count


def stays_inside(place: str, target: str) -> bool:
    """Whether a link leads to a place inside the host's directory, whatever other such links there are.

    So `..` may be only at the beginning of the target: after the name of another link it would lead to the
    directory above the one to which that points.
    """
    if not target or target.startswith("/") or "\0" in target:
        return False
    levels = [level for level in target.split("/") if level not in ("", ".")]
    up = next((number for number, level in enumerate(levels) if level != ".."), len(levels))
    return ".." not in levels[up:] and up <= place.count("/")
