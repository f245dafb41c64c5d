"""The ids of the jobs that this user has seen last, for what a shell offers after TAB: no host is asked."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

from mnt.paths import state_directory
from mnt.remote.common.files import make_directories, read_bytes, replace_file
from mnt.remote.common.forms import JOB_NAME
from mnt.remote.common.owners import check_owners
from mnt.remote.common.refusal import Refused

_MOST = 100
_MOST_BYTES = 64 * 1024


def remember(jobs: Iterable[str]) -> None:
    """Keep these ids, the newest first, before those that are kept already. What cannot be kept is not."""
    before = recall()
    kept = list(dict.fromkeys([*jobs, *before]))[:_MOST]
    if kept == before:
        return
    with contextlib.suppress(OSError, Refused):
        file = _file()
        make_directories(file.parent)
        if check_owners(str(file.parent), private=1):
            replace_file(file, "".join(f"{job}\n" for job in kept))


def recall() -> list[str]:
    """The ids that are kept; none if they cannot be read."""
    with contextlib.suppress(OSError, Refused):
        file = _file()
        if check_owners(str(file.parent), private=1):
            lines = read_bytes(file, _MOST_BYTES).decode(errors="replace").splitlines()
            return [line for line in lines if re.match(JOB_NAME, line)]
    return []


def _file() -> Path:
    """Raises OSError if no home directory is known."""
    return state_directory() / "jobs"
