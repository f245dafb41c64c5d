"""Standard input for many hosts. Each host reads all of it at its own speed.

A pipe is copied to a temporary file without a name. So memory use stays small even with slow hosts, and hosts
that start later also get all input. A regular file is not copied: each host's reader reads it directly.
"""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections.abc import Iterator

from mnt.errors import OutputError
from mnt.remote.common.files import strerror

_READ = 1 << 18  # bytes
_AHEAD = 1 << 24  # bytes to read ahead of the fastest host


def is_given(descriptor: int) -> bool:
    """Whether there is a standard input to pass on: it is open, and no terminal and not /dev/null."""
    try:
        device = os.fstat(descriptor)
    except OSError:
        return False
    if os.isatty(descriptor):
        return False
    return not stat.S_ISCHR(device.st_mode) or device.st_rdev != os.stat(os.devnull).st_rdev


class Source:
    """The data of a descriptor, from its current position on."""

    def __init__(self, descriptor: int) -> None:
        self._changed = threading.Condition()
        self._position = 0  # of the fastest host
        self._ended = False
        self._failure: OSError | None = None
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            self._file = descriptor
            self._start = os.lseek(descriptor, 0, os.SEEK_CUR)
            self._size = max(0, os.fstat(descriptor).st_size - self._start)
            self._ended = True
            return
        self._copy = tempfile.TemporaryFile(prefix="mnt-")  # noqa: SIM115 - as long as the source lives
        self._file = self._copy.fileno()
        self._start = self._size = 0
        threading.Thread(target=self._read_all, args=(descriptor,), daemon=True, name="mnt-stdin").start()

    def _read_all(self, descriptor: int) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._size - self._position < _AHEAD)
            try:
                data = os.read(descriptor, _READ)
            except OSError:  # treated as the end: a terminal that is gone
                data = b""
            try:
                self._copy.write(data)
                self._copy.flush()
            except OSError as error:
                self._failure = error
            with self._changed:
                self._size += len(data)
                self._ended = not data or self._failure is not None
                self._changed.notify_all()
            if self._ended:
                return

    def _piece(self, offset: int, feed: Feed) -> bytes:
        """The data at an offset; waits for it. Empty at the end of the data, or if `feed` is closed.

        Raises OutputError if standard input could not be copied.
        """
        with self._changed:
            if offset > self._position:
                self._position = offset
                self._changed.notify_all()
            self._changed.wait_for(lambda: feed.closed or self._size > offset or self._ended)
            size = min(_READ, self._size - offset)
        if feed.closed:
            return b""
        if self._failure is not None:
            message = f"standard input cannot be copied: {strerror(self._failure)}"
            raise OutputError(message, fix="free space in $TMPDIR")
        return os.pread(self._file, size, self._start + offset)


class Feed:
    """The reader of a Source for one host. Iterating waits for data; `close`, in another thread, ends it.

    Iterating raises OutputError if standard input could not be copied.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        offset = 0
        while data := self._source._piece(offset, self):
            offset += len(data)
            yield data

    def close(self) -> None:
        self.closed = True
        with self._source._changed:
            self._source._changed.notify_all()
