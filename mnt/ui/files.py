"""Files that a command writes for people."""

from __future__ import annotations

import errno
import os
import stat

from mnt.errors import OutputError, UsageError
from mnt.remote.common.files import replace_file, strerror
from mnt.remote.common.owners import place_to_write
from mnt.remote.common.refusal import Refused
from mnt.ui.console import readable

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)  # the place is right, the disk is not


def write_file(file: str | os.PathLike[str], text: str, *, fix: str | None = None) -> None:
    """Write `text` to a file, completely or not at all. A link stays, and what it points to is replaced.

    A file that is replaced keeps its mode; no other user can write to a new one, whatever the umask is.

    Args:
        text: what is no Unicode in it (a host's file names) becomes U+FFFD.
        fix: of the error.

    Raises OutputError if the disk is full or fails; UsageError if nothing can be written there, or another
    user made the file or a link on the way, as anyone can in /tmp, or could exchange such a link.
    """
    path, text = os.fspath(file), readable(text)
    try:
        with place_to_write(os.path.join(os.getcwd(), path)) as place:
            if place.found is None or stat.S_ISREG(place.found.st_mode):
                mode = place.found and place.found.st_mode & 0o777
                replace_file(place.name, text, mode=mode, dir_fd=place.above)
            else:  # a pipe or /dev/null, which is not replaced
                with open(f"/proc/self/fd/{place.descriptor}", "w", encoding="utf-8") as opened:
                    opened.write(text)
    except Refused as refusal:
        raise UsageError(f"{path} is not written: {refusal.message}", fix=fix) from None
    except OSError as error:
        kind = OutputError if error.errno in _DISK else UsageError
        raise kind(f"{path}: cannot be written: {strerror(error)}", fix=fix) from None
