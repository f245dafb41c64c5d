"""The tar stream of a tree: made once, read by every host's connection."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mnt.errors import MntError
from mnt.push.manifest import Manifest, changed, read_steadily
from mnt.push.tree import Entry
from mnt.remote.common.files import strerror
from mnt.remote.push.unpack import TAR_TYPES

_CHUNK = 1 << 18  # bytes


class Spool:
    """A tar stream in a file, for all hosts."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = file.tell()  # bytes

    def chunks(self) -> Iterator[bytes]:
        """The stream from its beginning; several threads may read it at the same time."""
        offset = 0
        while chunk := os.pread(self._file.fileno(), _CHUNK, offset):
            offset += len(chunk)
            yield chunk


@contextlib.contextmanager
def spooled(root: Path, manifest: Manifest) -> Iterator[Spool]:
    """The tar stream of a tree, in a temporary file without a name, which always disappears with the process.

    All hosts get exactly the bytes that the manifest describes: a file that has changed since raises
    MntError. The stream is not compressed: docs/push.md has the measurements.
    """
    file: IO[bytes] | None = None
    try:
        try:
            file = tempfile.TemporaryFile()  # noqa: SIM115 - closing it may fail
            for entry in manifest.entries:
                if entry.path:
                    _write_member(file, root, entry)
            file.write(tarfile.NUL * 2 * tarfile.BLOCKSIZE)
            file.flush()
        except OSError as error:
            raise MntError(
                f"a copy of the tree cannot be written to {tempfile.gettempdir()}: {strerror(error)}",
                fix="set TMPDIR to a directory with free space: TMPDIR=/path mnt push",
            ) from error
        yield Spool(file)
    finally:
        if file is not None:
            with contextlib.suppress(OSError):  # on a full disk, closing fails too
                file.close()


def _write_member(file: IO[bytes], root: Path, entry: Entry) -> None:
    member = tarfile.TarInfo(entry.path)
    member.type = TAR_TYPES[entry.kind]
    member.mode = entry.mode
    member.size = entry.size
    if entry.kind == "link":
        member.linkname = entry.value
    file.write(member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
    if entry.kind == "file":
        _write_content(file, root, entry)


def _write_content(file: IO[bytes], root: Path, entry: Entry) -> None:
    digest = hashlib.sha256()
    for block in read_steadily(root, entry.path):
        digest.update(block)
        file.write(block)
    if digest.hexdigest() != entry.value:
        raise changed(entry.path)
    file.write(tarfile.NUL * (-entry.size % tarfile.BLOCKSIZE))
