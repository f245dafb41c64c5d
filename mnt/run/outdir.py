"""Output in files: HOST.out and HOST.err in one directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from mnt.errors import UsageError

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
        raise UsageError(f"--outdir {directory}: {(error.strerror or str(error)).lower()}") from None
    return path


class HostFiles:
    """A sink: both files of a host. They exist as soon as the host was reached."""

    def __init__(self, directory: Path, host: str) -> None:
        """Create the files. A host's name in the inventory is a valid file name. Raises OSError."""
        with contextlib.ExitStack() as opened:
            self._files: list[BinaryIO] = [
                opened.enter_context(_create(directory / f"{host}{suffix}")) for suffix in _SUFFIXES
            ]
            self._opened = opened.pop_all()

    def __enter__(self) -> HostFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def stdout(self, data: bytes) -> None:
        self._files[0].write(data)

    def stderr(self, data: bytes) -> None:
        self._files[1].write(data)


def _create(path: Path) -> BinaryIO:
    """A new file that only the user can read; an existing link is not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(path, flags, 0o600), "wb", buffering=0)
