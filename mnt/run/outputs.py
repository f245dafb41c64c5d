"""The destinations of the hosts' output: live lines, memory, and files.

The output of a host is kept until it can be compared with that of the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from mnt.errors import OutputError, UsageError
from mnt.remote.common.files import strerror, write_all
from mnt.remote.common.owners import checked_directory, make_own_directory, shared_group
from mnt.remote.common.refusal import Refused
from mnt.tasks.command import Sink
from mnt.ui import HostLines

_IN_MEMORY = 1 << 16  # bytes of a stream; the rest is on disk, in a file without a name
KEPT_MIB = 8  # of a stream; a host may send more, even without end
_READ = 1 << 16  # bytes
_SUFFIXES = (".out", ".err")  # of the files in --outdir: HOST.out and HOST.err

# Takes pieces of stdout, and of stderr.
Writers = tuple[Callable[[bytes], object], Callable[[bytes], object]]


class Stored:
    """The beginning of a stream, KEPT_MIB at most. `digest` and `size` are those of the whole stream."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, prefix="mnt-")  # noqa: SIM115
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> None:
        """Raises OutputError."""
        try:
            self._file.write(data[: max(0, (KEPT_MIB << 20) - self.size)])
        except OSError as error:
            message = f"{tempfile.gettempdir()}: the output cannot be kept: {strerror(error)}"
            raise OutputError(message, fix="free space there, or set TMPDIR to another directory") from None
        self._hash.update(data)
        self.size += len(data)

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    @property
    def cut(self) -> bool:
        """Whether a part of the stream is not kept."""
        return self.size > KEPT_MIB << 20

    def pieces(self) -> Iterator[bytes]:
        """What is kept. Nothing may be written afterwards."""
        self._file.seek(0)
        while data := self._file.read(_READ):
            yield data

    def read(self) -> bytes:
        return b"".join(self.pieces())


class Capture:
    """A sink that keeps both streams, as far as Stored does."""

    def __init__(self) -> None:
        self.out = Stored()
        self.err = Stored()

    def stdout(self, data: bytes) -> None:
        self.out.write(data)

    def stderr(self, data: bytes) -> None:
        self.err.write(data)

    @property
    def cut(self) -> bool:
        """Whether a part of a stream is not kept."""
        return self.out.cut or self.err.cut

    @property
    def digest(self) -> bytes:
        """Two hosts with equal digests have equal output on both streams."""
        return self.out.digest + self.err.digest


def prepare(directory: str, hosts: Iterable[str], opened: contextlib.ExitStack) -> int:
    """Create the directory, and remove these hosts' files of an earlier run.

    Returns a descriptor of the directory, which `opened` closes: a member of its group could exchange it.

    Raises UsageError, also if another user could replace the directory, or make files in it. The members of
    its own group may, if this user is one of them.
    """
    try:
        path = os.path.join(os.getcwd(), directory)
        make_own_directory(path, 0o700)
        descriptor = opened.enter_context(
            checked_directory(path, shared_group(directory), inside_closed=True)
        )
        for host in hosts:
            for suffix in _SUFFIXES:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{host}{suffix}", dir_fd=descriptor)
    except Refused as refusal:
        raise UsageError(f"--outdir {directory}: {refusal.message}", fix=refusal.fix) from None
    except OSError as error:
        raise UsageError(f"--outdir {directory}: {strerror(error)}") from None
    return descriptor


class _File:
    """A file in the directory of --outdir, which only the user can read. Raises OutputError."""

    def __init__(self, directory: int, name: str) -> None:
        self._path = os.path.join(os.readlink(f"/proc/self/fd/{directory}"), name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._file = open(os.open(name, flags, 0o600, dir_fd=directory), "wb", buffering=0)  # noqa: SIM115 - see `close`
        except OSError as error:
            raise self._failure(error) from None

    def write(self, data: bytes) -> None:
        try:
            write_all(self._file, data)
        except OSError as error:
            raise self._failure(error) from None

    def close(self) -> None:
        self._file.close()

    def _failure(self, error: OSError) -> OutputError:
        message = f"--outdir: {self._path} cannot be written: {strerror(error)}"
        return OutputError(message, fix="name another directory")


def create(directory: int, host: str, opened: contextlib.ExitStack) -> list[_File]:
    """Create both files of a host that was reached: for stdout and for stderr; `opened` closes them.

    A host's name in the inventory is a valid file name. Raises OutputError, also if the files exist:
    `prepare` has removed those of earlier runs.
    """
    return [
        opened.enter_context(contextlib.closing(_File(directory, f"{host}{suffix}"))) for suffix in _SUFFIXES
    ]


class Outputs:
    """The destinations of the hosts' output.

    Args:
        live: show stdout and stderr of all hosts immediately, on these.
        keep: keep it for the summary.
        directory: also write it to files there; the descriptor that `prepare` returns.
    """

    def __init__(
        self, *, live: tuple[HostLines, HostLines] | None, keep: bool, directory: int | None = None
    ) -> None:
        self._live = live
        self._keep = keep
        self._directory = directory
        self._gates: dict[str, _Gate] = {}
        self.kept: dict[str, Capture] = {}

    def open(self, host: str, opened: contextlib.ExitStack) -> Sink:
        """The sink of a host that was reached; `opened` closes its files. Raises OutputError."""
        writers: list[Writers] = []
        if self._live is not None:
            out, err = self._live
            writers.append((partial(out.feed, host), partial(err.feed, host)))
        if self._keep:
            kept = self.kept[host] = Capture()
            writers.append((kept.stdout, kept.stderr))
        if self._directory is not None:
            stdout, stderr = create(self._directory, host, opened)
            writers.append((stdout.write, stderr.write))
        gate = self._gates[host] = _Gate(writers)
        return gate

    def close(self) -> None:
        """Show incomplete last lines. Further output, which a host that was given up may send, is ignored."""
        for gate in list(self._gates.values()):
            gate.close()
        for lines in self._live or ():
            lines.close()


class _Gate:
    """A sink that passes a host's output on, until it is closed."""

    def __init__(self, writers: list[Writers]) -> None:
        self._writers = writers
        self._lock = threading.Lock()

    def stdout(self, data: bytes) -> None:
        with self._lock:
            for write, _ in self._writers:
                write(data)

    def stderr(self, data: bytes) -> None:
        with self._lock:
            for _, write in self._writers:
                write(data)

    def close(self) -> None:
        with self._lock:
            self._writers = []
