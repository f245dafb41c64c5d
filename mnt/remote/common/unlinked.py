"""Read files on whose way there is no link, and no mount of another user. Runs on a host: Python 3.8."""

from __future__ import annotations

import errno
import os
from typing import BinaryIO

from mnt.remote.common.files import open_regular
from mnt.remote.common.levels import open_without_links
from mnt.remote.common.owners import judge_mount
from mnt.remote.common.refusal import Refused


def open_regular_without_links(path: str | bytes) -> BinaryIO:
    """Open a file at an absolute path, as `files.open_regular`. Raises OSError."""
    try:
        place = open_without_links(os.fsencode(path), os.O_PATH, judge_mount)
    except Refused as refusal:
        raise OSError(errno.EPERM, refusal.message, os.fsdecode(path)) from None
    try:
        return open_regular(f"/proc/self/fd/{place}")
    finally:
        os.close(place)
