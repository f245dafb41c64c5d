"""Open what has no link on its way, and no mount of another user. Runs on a host: Python 3.8.

Both raise OSError, also for what is on the way.
"""

from __future__ import annotations

import errno
import os
from typing import BinaryIO

from mnt.remote.common.files import encode, open_regular
from mnt.remote.common.levels import open_without_links
from mnt.remote.common.owners import judge_mount
from mnt.remote.common.refusal import Refused


def open_regular_without_links(path: str | bytes) -> BinaryIO:
    """Open a file at an absolute path, as `files.open_regular`."""
    place = _opened(path, os.O_PATH)
    try:
        return open_regular(f"/proc/self/fd/{place}")
    finally:
        os.close(place)


def directory_without_links(path: str | bytes) -> int:
    """A descriptor (O_PATH) of the directory at an absolute path."""
    return _opened(path, os.O_PATH | os.O_DIRECTORY)


def _opened(path: str | bytes, flags: int) -> int:
    try:
        return open_without_links(path if isinstance(path, bytes) else encode(path), flags, judge_mount)
    except Refused as refusal:
        raise OSError(errno.EPERM, refusal.message, os.fsdecode(path)) from None
