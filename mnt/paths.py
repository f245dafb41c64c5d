"""Paths of this machine that a user, an inventory or an ssh_config names."""

from __future__ import annotations

import errno
import os
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


def state_directory() -> Path:
    """Where `mnt` keeps what it remembers, by the XDG Base Directory Specification, 0.8.

    Raises OSError if no home directory is known.
    """
    home = os.environ.get("XDG_STATE_HOME", "")
    return Path(home if os.path.isabs(home) else expanded("~/.local/state")) / "mnt"
