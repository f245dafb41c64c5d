"""Output in files: HOST.out and HOST.err in one directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from mnt.errors import UsageError
from mnt.remote.common.files import strerror

_SUFFIXES = (".out", ".err")


def prepare(directory: str, hosts: Iterable[str]) -> Path:
    """Create the directory, and remove these hosts' files of an earlier run. Raises UsageError."""
    path = Path(directory)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for host in hosts:
            for suffix in _SUFFIXES:
                (path / f"{host}{suffix}").unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"--outdir {directory}: {strerror(error)}") from None
    return path


def create(directory: Path, host: str, opened: contextlib.ExitStack) -> list[BinaryIO]:
    """Create both files of a host that was reached: for stdout and for stderr; `opened` closes them.

    A host's name in the inventory is a valid file name. Only the user can read the files; an existing link is
    not followed. Raises OSError.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    return [
        opened.enter_context(open(os.open(directory / f"{host}{suffix}", flags, 0o600), "wb", buffering=0))
        for suffix in _SUFFIXES
    ]
