"""The logs of a node's ranks: how much of them is there while the job runs, and what is kept of them.

The engine opens these files by name, more than once. So they are in the node-local directory, where no other
node can put a link in their place. That may be in memory: while the job runs, the beginning of a long log is
given back to the file system, as far as the engine has read it. When the node's part has ended, the end of
each log is copied to the job's directory. Runs on a host: standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import BinaryIO

from mnt.remote.common.files import read, unix_lines, whole_number
from mnt.remote.common.levels import Level, opened_again, tree
from mnt.remote.common.owners import judge_mount
from mnt.remote.common.refusal import Refused
from mnt.remote.common.unlinked import directory_without_links
from mnt.remote.job.files import JobPaths
from mnt.remote.job.procs import Process
from mnt.remote.job.state import log

KEEP = 8 * 1024 * 1024  # bytes of each file, at its end; while the job runs, up to three times as much
_STEP = 2 * 1024 * 1024  # what is given back begins and ends at multiples of it: a huge page of a tmpfs
_LOOK_EVERY = 1.0  # seconds
_UNREAD = 10.0  # seconds after which a file that nobody has open to read is not one that the engine will read
_MOST = 4096  # files and directories of the ranks
_PIECE = 1024 * 1024  # bytes that are copied at a time
_LINE = 65536  # bytes in which the end of a cut line is looked for

_PUNCH_HOLE = 0x02 | 0x01  # with FALLOC_FL_KEEP_SIZE: fallocate(2)
_CUT = "[mnt: the first {} bytes are not kept; output.log has them]\n"
_IS_CUT = re.compile(rb"\[mnt: the first ([0-9]{1,18}) bytes are not kept; output.log has them]\n")


class RankLogs:
    """The files in the node-local directory of the ranks' logs, whatever the engine calls them."""

    def __init__(self, paths: JobPaths) -> None:
        self._paths = paths
        self._next = 0.0
        self._freed: dict[tuple[int, int], int] = {}  # by device and inode, bytes from the beginning
        self._unread: dict[tuple[int, int], float] = {}  # since when nobody reads it (monotonic)

    def bound(self, now: float, processes: Callable[[], Iterable[Process]]) -> None:
        """Give back the beginning of long files, but nothing that the engine has not read. Never raises.

        Args:
            now: monotonic seconds; most calls return at once.
            processes: the living ones of the job, the engine among them.
        """
        if now < self._next:
            return
        self._next = now + _LOOK_EVERY
        try:
            self._bound(now, processes)
        except (OSError, Refused) as error:
            self._next = float("inf")
            log(f"cannot shorten the ranks' logs: {error}")

    def _bound(self, now: float, processes: Callable[[], Iterable[Process]]) -> None:
        readers: _Readers | None = None
        for _, level in self._files():
            assert level.found is not None  # noqa: S101 - narrows the type
            key, size = (level.found.st_dev, level.found.st_ino), level.found.st_size
            freed = self._freed.get(key, 0)
            if size - freed <= 2 * KEEP:
                continue
            if readers is None:
                readers = _Readers(processes(), f"/{self._paths.job}/{self._paths.host}/")
            position = readers.positions.get(key)
            if position is None:
                since = self._unread.setdefault(key, now)
                if not readers.complete or now - since < _UNREAD:
                    continue
                position = size
            end = min(size - KEEP, position) // _STEP * _STEP
            if end > freed:
                _give_back(level, freed, end)
                self._freed[key] = end

    def keep(self) -> Generator[None, None, None]:
        """Copy the end of each file to the job's directory, a piece at each step.

        What is there already stays, and nothing is written through a link: another node may have made them.
        Raises OSError or Refused if one could not be copied, after all others.
        """
        problem: OSError | None = None
        if not self._paths.has_directory():
            return
        above = directory_without_links(self._paths.real(self._paths.directory))
        try:
            for names, level in self._files():
                try:
                    yield from _copy(level, above, [os.path.basename(self._paths.ranks), *names])
                except FileExistsError:
                    continue
                except OSError as error:
                    problem = problem or error
        finally:
            os.close(above)
        if problem is not None:
            raise problem

    def _files(self) -> Iterator[tuple[list[str], Level]]:
        """The names on the way to each regular file, and the file."""
        if not self._paths.has_local():
            return
        top = self._paths.real(self._paths.local_ranks)
        try:
            directory = directory_without_links(top)
        except FileNotFoundError:
            return
        try:
            for level in itertools.islice(tree(directory, top, judge_mount), _MOST):
                if level.found is not None and stat.S_ISREG(level.found.st_mode):
                    yield os.path.relpath(level.path, top).split("/"), level
        finally:
            os.close(directory)


def keep_rank_logs(paths: JobPaths, seconds: float) -> None:
    """The same for a supervisor that is dead, for so long at most. What could not be copied is lost."""
    end = time.monotonic() + seconds
    with contextlib.suppress(OSError, Refused), contextlib.closing(RankLogs(paths).keep()) as steps:
        for _ in steps:
            if time.monotonic() > end:
                return


class _Readers:
    """How far the processes that have a file below a directory open to read have read it."""

    def __init__(self, processes: Iterable[Process], part_of_path: str) -> None:
        self.positions: dict[tuple[int, int], int] = {}
        self.complete = True
        for process in processes:
            directory = f"/proc/{process.pid}/fd"
            try:
                names = os.listdir(directory)
            except (FileNotFoundError, ProcessLookupError):
                continue
            except OSError:
                self.complete = False
                continue
            for name in names:
                with contextlib.suppress(OSError):
                    if part_of_path in os.readlink(f"{directory}/{name}"):
                        self._note(process.pid, name, os.stat(f"{directory}/{name}"))

    def _note(self, pid: int, name: str, found: os.stat_result) -> None:
        # proc(5): "pos:\t0\nflags:\t0100000\n..", the flags in octal.
        lines = unix_lines(read(f"/proc/{pid}/fdinfo/{name}", 4096))
        fields = dict(line.partition(":")[::2] for line in lines)
        position, flags = whole_number(fields.get("pos", "").strip()), int(fields.get("flags", "0"), 8)
        if position is None or flags & os.O_PATH or flags & os.O_ACCMODE == os.O_WRONLY:
            return
        key = (found.st_dev, found.st_ino)
        self.positions[key] = min(position, self.positions.get(key, position))


def _give_back(level: Level, begin: int, end: int) -> None:
    """Free the file's space between two offsets; its size, and all offsets, stay. Raises OSError."""
    import ctypes  # not every Python has it, and only a supervisor needs it

    descriptor = opened_again(level.descriptor, os.O_RDWR)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.fallocate(descriptor, _PUNCH_HOLE, ctypes.c_long(begin), ctypes.c_long(end - begin)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), level.path)
    finally:
        os.close(descriptor)


# --- the copy ----------------------------------------------------------------------------------------------


def _copy(level: Level, above: int, names: list[str]) -> Iterator[None]:
    """Copy the end of a file to a new one, below a directory of which a descriptor is given.

    Raises OSError, and then leaves no part of it.
    """
    source = opened_again(level.descriptor, os.O_RDONLY)
    try:
        size = os.fstat(source).st_size
        begin = 0 if size <= KEEP else _line_after(source, size - KEEP)
        directory = _make_way(above, names[:-1])
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            target = os.open(names[-1], flags, 0o600, dir_fd=directory)
            try:
                with open(target, "wb") as file:
                    if begin:
                        file.write(_CUT.format(begin).encode())
                    while begin < size:
                        data = os.pread(source, min(_PIECE, size - begin), begin)
                        if not data:
                            break
                        file.write(data)
                        begin += len(data)
                        yield
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(names[-1], dir_fd=directory)
                raise
        finally:
            os.close(directory)
    finally:
        os.close(source)


def _make_way(above: int, names: Iterable[str]) -> int:
    """A descriptor of a directory below another one, made if need be. Raises OSError, also for a link."""
    here = os.dup(above)
    for name in names:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=here)
            inside = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
        finally:
            os.close(here)
        here = inside
    return here


def _line_after(descriptor: int, offset: int) -> int:
    """Where the next line begins; the offset if none does soon."""
    return offset + os.pread(descriptor, _LINE, offset).find(b"\n") + 1


# --- reading -----------------------------------------------------------------------------------------------


class OpenLog:
    """A log that is open to read.

    Offsets are those of what was written, whether its beginning is still there or not; so they stay valid
    when a rank's log has been copied.
    """

    def __init__(self, file: BinaryIO, *, of_rank: bool = False, local: bool = False) -> None:
        """Args:
        of_rank: it may have lost its beginning.
        local: it is the engine's own file, not the copy.
        """
        self._descriptor, self._holes = file.fileno(), of_rank and local
        self.size = os.fstat(self._descriptor).st_size
        self._before = 0  # what offsets have more than places in the file
        cut = _IS_CUT.match(os.pread(self._descriptor, 128, 0)) if of_rank and not local else None
        if cut:
            self._before = int(cut[1]) - cut.end()
            self.size += self._before
        self.first = int(cut[1]) if cut else self._hole()  # the first byte that is there

    def read(self, offset: int, size: int) -> bytes:
        """Some bytes from there on; none at the end, or if they are not there any more."""
        data = os.pread(self._descriptor, size, offset - self._before) if offset >= self.first else b""
        if self._holes:
            self.first = self._hole()
        return data if offset >= self.first else b""

    def begin(self) -> int:
        """Where the first line begins that is wholly there."""
        return _line_after(self._descriptor, self.first) if self._holes and self.first else self.first

    def _hole(self) -> int:
        """The size of the hole with which it begins; 0 if the file system does not know."""
        if not self._holes:
            return 0
        try:
            return os.lseek(self._descriptor, 0, os.SEEK_DATA)
        except OSError as error:
            return self.size if error.errno == errno.ENXIO else 0
