"""A host's output, kept until it can be compared with that of the others."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator

_IN_MEMORY = 1 << 18  # bytes of a stream; the rest is on disk, in a file without a name
_READ = 1 << 16  # bytes


class Stored:
    """One stream. `digest` compares streams without reading them again."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, prefix="mnt-")  # noqa: SIM115
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    def pieces(self) -> Iterator[bytes]:
        """The whole stream. Nothing may be written afterwards."""
        self._file.seek(0)
        while data := self._file.read(_READ):
            yield data

    def read(self) -> bytes:
        return b"".join(self.pieces())


class Capture:
    """A sink that keeps both streams."""

    def __init__(self) -> None:
        self.out = Stored()
        self.err = Stored()

    def stdout(self, data: bytes) -> None:
        self.out.write(data)

    def stderr(self, data: bytes) -> None:
        self.err.write(data)

    @property
    def digest(self) -> bytes:
        """Two hosts with equal digests have equal output on both streams."""
        return self.out.digest + self.err.digest
