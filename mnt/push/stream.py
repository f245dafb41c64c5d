"""The tar streams for the hosts: each file that any of them lacks is read once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from mnt.errors import MntError
from mnt.push.manifest import Manifest, changed, read_steadily
from mnt.push.tree import Entry
from mnt.remote.common.files import strerror

_CHUNK = 1 << 18  # bytes
_END = tarfile.NUL * 2 * tarfile.BLOCKSIZE  # of a stream


class Spool:
    """The members of tar streams, in a file.

    Args:
        places: index of a manifest's entry -> where its member begins and ends, in bytes.
    """

    def __init__(self, file: IO[bytes], places: Mapping[int, tuple[int, int]]) -> None:
        self._file = file
        self._places = places

    def size(self, wanted: Sequence[int]) -> int:
        """Bytes of the stream with the wanted entries; without any, there is none."""
        sizes = (end - start for start, end in (self._places[index] for index in wanted))
        return sum(sizes) + len(_END) if wanted else 0

    def chunks(self, wanted: Sequence[int]) -> Iterator[bytes]:
        """The stream with the wanted entries, in this order; several threads may read at the same time."""
        for start, end in self._ranges(wanted):
            while start < end:
                chunk = os.pread(self._file.fileno(), min(_CHUNK, end - start), start)
                start += len(chunk)
                yield chunk
        if wanted:
            yield _END

    def _ranges(self, wanted: Sequence[int]) -> list[tuple[int, int]]:
        """The places of the wanted entries; those that follow each other are one."""
        ranges: list[tuple[int, int]] = []
        for start, end in (self._places[index] for index in wanted):
            if ranges and ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((start, end))
        return ranges


@contextlib.contextmanager
def spooled(root: Path, manifest: Manifest, wanted: Sequence[int]) -> Iterator[Spool]:
    """Files of a tree, in a temporary file without a name, which always disappears with the process.

    Args:
        wanted: indexes of the manifest's entries; if there are none, no disk is needed.

    All hosts get exactly the bytes that the manifest describes: a file that has changed since raises
    MntError. The stream is not compressed: docs/push.md has the measurements.
    """
    file: IO[bytes] | None = None
    try:
        try:
            file = tempfile.TemporaryFile() if wanted else open(os.devnull, "rb")  # noqa: SIM115 - see below
            places = {}
            for index in wanted:
                start = file.tell()
                _write_member(file, root, manifest.entries[index])
                places[index] = (start, file.tell())
            file.flush()
        except OSError as error:
            raise MntError(
                f"a copy of the tree cannot be written to {tempfile.gettempdir()}: {strerror(error)}",
                fix="set TMPDIR to a directory with free space: TMPDIR=/path mnt push",
            ) from error
        yield Spool(file, places)
    finally:
        if file is not None:
            with contextlib.suppress(OSError):  # on a full disk, closing fails too
                file.close()


def _write_member(file: IO[bytes], root: Path, entry: Entry) -> None:
    member = tarfile.TarInfo(entry.path)
    member.mode = entry.mode
    member.size = entry.size
    file.write(member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
    _write_content(file, root, entry)


def _write_content(file: IO[bytes], root: Path, entry: Entry) -> None:
    digest = hashlib.sha256()
    for block in read_steadily(root, entry.path):
        digest.update(block)
        file.write(block)
    if digest.hexdigest() != entry.value:
        raise changed(entry.path)
    file.write(tarfile.NUL * (-entry.size % tarfile.BLOCKSIZE))
