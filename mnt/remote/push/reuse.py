"""Contents that this host has in earlier releases: found, and copied. Runs on a host: Python 3.8.

A job may write into the files of its release, so no two releases share a file: a copy is a file of its own,
which on some file systems (btrfs, XFS) shares the blocks until one of the two is written. Whatever is copied
is hashed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
from typing import IO, Collection, Iterable

from mnt.remote.common.files import open_regular, write_all
from mnt.remote.push.entries import Entry

_BLOCK = 1 << 20
_MOST_PLACES = 3  # files with the same content that are tried: the first nearly always has it
# FICLONE of linux/fs.h, ioctl_ficlone(2): _IOW(0x94, 9, int), with the direction as the architecture has it.
_WRITE = 4 if platform.machine().startswith(("ppc", "mips", "sparc")) else 1
_FICLONE = (_WRITE << 29 if _WRITE == 4 else _WRITE << 30) | 4 << 16 | 0x94 << 8 | 9


def places_of(
    wanted: Collection[str], releases: Iterable[tuple[bytes, Iterable[Entry]]]
) -> dict[str, list[bytes]]:
    """Where contents should be: SHA-256 (hex) -> files.

    Args:
        wanted: the SHA-256 of the contents.
        releases: the tree and the entries of each, the best first.
    """
    places: dict[str, list[bytes]] = {}
    for top, entries in releases:
        for entry in entries:
            if entry.kind == "file" and entry.value in wanted:
                known = places.setdefault(entry.value, [])
                if len(known) < _MOST_PLACES:
                    known.append(os.path.join(top, entry.path))
    return places


def take_from(place: bytes, path: bytes, entry: Entry) -> bool:
    """Make the new file `path` for an entry by copying another file.

    False: that one has other bytes than the entry, or cannot be read; then there is no new one. Raises
    OSError if the new file cannot be written.
    """
    try:
        source = open_regular(place, follow=False)
    except OSError:
        return False
    with source:
        if os.fstat(source.fileno()).st_size != entry.size:
            return False
        same = False
        try:
            with open_new(path) as file:
                same = _copy(source, file) == entry.value
                os.fchmod(file.fileno(), entry.mode)
        finally:
            if not same:
                _remove(path)
    return same


def _copy(source: IO[bytes], file: IO[bytes]) -> str | None:
    """Fill a file with the content of another one; its SHA-256 then; None: that one cannot be read."""
    digest = hashlib.sha256()
    cloned = _clone(source, file)
    while True:
        try:
            block = (file if cloned else source).read(_BLOCK)
        except OSError:
            return None
        if not block:
            return digest.hexdigest()
        if not cloned:
            write_all(file, block)
        digest.update(block)


def _clone(source: IO[bytes], file: IO[bytes]) -> bool:
    """Whether the file system could let both share their blocks."""
    try:
        fcntl.ioctl(file.fileno(), _FICLONE, source.fileno())
    except OSError:
        return False
    return True


def open_new(path: bytes) -> IO[bytes]:
    """Open a new file to write and read, unbuffered. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(path, flags, 0o600), "r+b", buffering=0)


def _remove(path: bytes) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
