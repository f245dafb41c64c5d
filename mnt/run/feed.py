"""Standard input for many hosts, each of which reads all of it at its own pace.

A pipe is copied to a temporary file that has no name, so that memory stays small however slow a host is, and
hosts that start later get it all too. Of a regular file each host reads for itself.
"""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections.abc import Iterator

from mnt.errors import MntError, strerror

_READ = 1 << 18  # bytes
_AHEAD = 1 << 24  # bytes that are read before the fastest host wants them


def is_given(descriptor: int) -> bool:
    """Whether there is a standard input to pass on: no terminal, not closed, not /dev/null."""
    try:
        device = os.fstat(descriptor)
    except OSError:
        return False
    if os.isatty(descriptor):
        return False
    return not stat.S_ISCHR(device.st_mode) or device.st_rdev != os.stat(os.devnull).st_rdev


class Source:
    """What is read from a descriptor, from where it stands on."""

    def __init__(self, descriptor: int) -> None:
        self._changed = threading.Condition()
        self._wanted = 0  # how far the fastest host is
        self._ended = False
        self._failure: OSError | None = None
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            self._file = descriptor
            self._start = os.lseek(descriptor, 0, os.SEEK_CUR)
            self._there = max(0, os.fstat(descriptor).st_size - self._start)
            self._ended = True
            return
        self._copy = tempfile.TemporaryFile(prefix="mnt-")  # noqa: SIM115 - as long as the source lives
        self._file = self._copy.fileno()
        self._start = self._there = 0
        threading.Thread(target=self._read_all, args=(descriptor,), daemon=True, name="mnt-stdin").start()

    def feed(self) -> Feed:
        """All of it, for one host."""
        return Feed(self)

    def _read_all(self, descriptor: int) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._there - self._wanted < _AHEAD)
            try:
                data = os.read(descriptor, _READ)
            except OSError:  # as good as its end: a terminal that is gone
                data = b""
            failure = self._keep(data)
            with self._changed:
                self._failure = failure
                self._there += len(data)
                self._ended = not data or failure is not None
                self._changed.notify_all()
            if self._ended:
                return

    def _keep(self, data: bytes) -> OSError | None:
        """Put data behind what is there; why that cannot be done."""
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._there + written)
        except OSError as error:
            return error
        return None

    def _piece(self, offset: int, feed: Feed) -> bytes:
        """What is there at an offset, waited for if need be; empty at the end, or once `feed` is closed.

        Raises MntError where standard input could not be kept.
        """
        with self._changed:
            if offset > self._wanted:
                self._wanted = offset
                self._changed.notify_all()
            self._changed.wait_for(lambda: feed.closed or self._there > offset or self._ended)
            size = min(_READ, self._there - offset)
        if feed.closed:
            return b""
        if self._failure is not None:
            message = f"standard input cannot be kept: {strerror(self._failure)}"
            raise MntError(message, fix="more room in $TMPDIR")
        return os.pread(self._file, size, self._start + offset)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Feed:
    """One host's reading of a Source. Iterating waits for more; `close`, from another thread, ends it.

    Iterating raises MntError where standard input could not be kept.
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
        self._source._wake()
