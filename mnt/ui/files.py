"""Files that a command writes for people."""

from __future__ import annotations

import os
from pathlib import Path

from mnt.errors import UsageError
from mnt.remote.common.files import replace_file, strerror
from mnt.remote.common.owners import check_owner
from mnt.remote.common.refusal import Refused
from mnt.ui.console import readable


def write_file(file: str | os.PathLike[str], text: str, *, fix: str | None = None) -> None:
    """Write `text` to a file, completely or not at all. A link stays, and what it points to is replaced.

    Args:
        text: what is no Unicode in it (a host's file names) becomes U+FFFD.
        fix: of the error.

    Raises UsageError if that fails, or if another user made the file or link, as anyone can in /tmp.
    """
    try:
        check_owner(os.fspath(file))
    except Refused as refusal:
        raise UsageError(f"{os.fspath(file)} is not written: {refusal.message}", fix=fix) from None
    target, text = Path(os.path.realpath(file)), readable(text)
    try:
        if target.exists() and not target.is_file():  # a pipe or /dev/null, which is not replaced
            target.write_text(text, encoding="utf-8")
        else:
            replace_file(target, text, mode=None)
    except OSError as error:
        raise UsageError(f"{os.fspath(file)}: cannot be written: {strerror(error)}", fix=fix) from None
