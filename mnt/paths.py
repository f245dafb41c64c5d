"""Paths of this machine that a user, an inventory or an ssh_config names; and how any two paths relate."""

from __future__ import annotations

import errno
import os
import posixpath
from pathlib import Path


def expanded(path: str) -> str:
    """The path with `~` and `~USER` replaced by the home directory.

    Raises OSError where no file can be: for a user whose home directory is unknown, and for a path with a NUL
    or with characters that no path can have.
    """
    try:
        odd = b"\0" in os.fsencode(path)
    except UnicodeEncodeError:
        odd = True
    if odd:
        raise OSError(errno.EINVAL, "no file can have such a name", path)
    found = os.path.expanduser(path)
    if found.startswith("~"):
        raise OSError(errno.EINVAL, f"no home directory of {path.split('/')[0]} is known", path)
    return found


def is_below(path: str, place: str) -> bool:
    """Whether a path is that of a place or of something in it; see `part_below`."""
    return part_below(path, place) is not None


def part_below(path: str, place: str) -> str | None:
    """What follows in a path after that of a place; empty: they are the same; None: it leads elsewhere.

    It is decided by the texts alone, on whatever host the paths are. It takes linear time, because a host may
    have named them: `PurePath.is_relative_to` takes minutes for a path of many levels.
    """
    path, place = (posixpath.normpath(each).rstrip("/") + "/" for each in (path, place))
    return path[len(place) : -1] if path.startswith(place) else None


def state_directory() -> Path:
    """Where `mnt` keeps what it remembers, by the XDG Base Directory Specification, 0.8.

    Raises OSError if no home directory is known.
    """
    home = os.environ.get("XDG_STATE_HOME", "")
    return Path(home if os.path.isabs(home) else expanded("~/.local/state")) / "mnt"
