"""The directory of one host's files on the head. No name and no link of a host leads out of it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from mnt.errors import OutputError, UsageError
from mnt.fetch.places import PART_PREFIX
from mnt.fetch.plan import Here
from mnt.remote.common.files import encode, strerror, write_all
from mnt.remote.common.owners import check_opened, checked_directory, make_own_directory, shared_group
from mnt.remote.common.refusal import Refused
from mnt.tasks.fetch import Entry

_BLOCK = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_MEDDLED = "something else here has changed its incomplete file: run it again"
IN_THE_WAY = "something else is in its way here: move that away"
_LOCK = f"{PART_PREFIX}lock"  # no file of a host has such a name
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def opened(directory: str, *, shared: bool) -> Iterator[int]:
    """A descriptor of the directory for the hosts' files, which is made if need be.

    Args:
        shared: the members of its own group may own it and write to it, if this user is one of them.

    Raises UsageError, also if another user could replace it, or files in it.
    """
    path = os.path.join(os.getcwd(), directory)
    with contextlib.ExitStack() as stack:
        try:
            make_own_directory(path, 0o700)
            checked = checked_directory(path, shared_group(path) if shared else None, inside_closed=True)
            descriptor = stack.enter_context(checked)
        except Refused as refusal:
            raise UsageError(f"--to {directory}: {refusal.message}", fix=refusal.fix) from None
        except OSError as error:
            raise UsageError(f"--to {directory}: {strerror(error)}") from None
        yield descriptor


class Unfit(Exception):
    """A file cannot be written at its place, whatever the disk's state; the message says why."""


class Store:
    """The files of one host, in the directory with its name, to which no other user can write.

    Places are relative paths that `places.below` accepts. Every method raises Unfit if something else is in
    the way, and OutputError if the disk is full or fails. Only one process at a time has the store of a host.

    Args:
        directory: the descriptor that `opened` yields.
        host: its name; the directory is made.
        umask: that of the process.
    """

    def __init__(self, directory: int, host: str, umask: int) -> None:
        self._umask = umask
        self.shown = Path(os.readlink(f"/proc/self/fd/{directory}"), host)
        with contextlib.ExitStack() as opened:
            try:
                with self._failures(""):
                    self._top = _enter(directory, host, make=True)
                    opened.callback(os.close, self._top)
                    locked = _lock(self._top)
            except Unfit as unfit:
                raise OutputError(
                    f"{self.shown}: {unfit}", fix="move it away, or name another directory"
                ) from None
            if locked is None:
                raise OutputError(
                    f"{self.shown}: another mnt fetch writes there",
                    fix="wait until it has ended, or name another directory: --to DIR",
                )
            opened.pop_all()
        self._locked = locked
        self._last = ("", self._top)  # a directory that is open, by its place

    def close(self) -> None:
        """Let other processes in."""
        with contextlib.suppress(OSError):
            os.unlink(_LOCK, dir_fd=self._top)
        os.close(self._locked)
        if self._last[1] != self._top:
            os.close(self._last[1])
        os.close(self._top)

    def here(self, place: str) -> Here | None:
        """What is at a place; None: nothing."""
        with self._failures(place):
            try:
                above, name = self._above(place, make=False)
                found = os.lstat(name, dir_fd=above)
            except FileNotFoundError:
                return None
            if stat.S_ISLNK(found.st_mode):
                return Here("link", target=os.fsdecode(os.readlink(name, dir_fd=above)))
            is_file = stat.S_ISREG(found.st_mode)
            return Here("file" if is_file else "other", found.st_size, found.st_mtime_ns)

    def arrived(self, place: str, size: int) -> tuple[int, str]:
        """Bytes that are here of an incomplete file of that size, and their SHA-256 (hex); or (0, "")."""
        with self._failures(place):
            try:
                above, _ = self._above(place, make=False)
                descriptor = _open_part(above, place, os.O_RDWR)
            except (FileNotFoundError, PermissionError, Unfit):
                return 0, ""
            with open(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                if not 0 < found.st_size <= size:
                    return 0, ""
                digest = hashlib.sha256()
                for block in iter(lambda: file.read(_BLOCK), b""):
                    digest.update(block)
                return found.st_size, digest.hexdigest()

    def write(self, place: str, at: int, data: bytes) -> None:
        """Write the next bytes of an incomplete file; what is after them is cut off. At 0 it is a new one."""
        with self._failures(place):
            above, _ = self._above(place, make=True)
            if at == 0:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(_part(place), dir_fd=above)
            flags = os.O_WRONLY | (0 if at else os.O_CREAT | os.O_EXCL)
            with open(_open_part(above, place, flags), "wb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size < at:
                    raise Unfit(_MEDDLED)
                os.ftruncate(file.fileno(), at)
                file.seek(at)
                write_all(file, data)

    def finish(self, place: str, entry: Entry) -> None:
        """Give a file that is complete its time, mode and name. Other users get no permission to write."""
        with self._failures(place):
            above, name = self._above(place, make=False)
            with open(_open_part(above, place, os.O_WRONLY), "wb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size != entry.size:
                    raise Unfit(_MEDDLED)
                os.fchmod(file.fileno(), (entry.mode & 0o755 & ~self._umask) | 0o600)
                with contextlib.suppress(OSError, OverflowError):  # a time that the file system cannot store
                    os.utime(file.fileno(), ns=(entry.mtime, entry.mtime))
            os.replace(_part(place), name, src_dir_fd=above, dst_dir_fd=above)

    def link(self, place: str, target: str) -> None:
        """Make a link; one that is there is replaced."""
        with self._failures(place):
            above, name = self._above(place, make=True)
            part = _part(place)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part, dir_fd=above)
            os.symlink(encode(target), part, dir_fd=above)
            try:
                os.replace(part, name, src_dir_fd=above, dst_dir_fd=above)
            except OSError:
                os.unlink(part, dir_fd=above)
                raise

    def _above(self, place: str, *, make: bool) -> tuple[int, bytes]:
        """A descriptor of a place's directory, and the name in it. No level is a link. Raises OSError."""
        directory, _, name = place.rpartition("/")
        if self._last[0] == directory:
            return self._last[1], encode(name)
        here, levels = os.dup(self._top), [*filter(None, directory.split("/"))]
        for count in range(len(levels)):
            try:
                inside = _enter(here, "/".join(levels[: count + 1]), make=make)
            finally:
                os.close(here)
            here = inside
        if self._last[1] != self._top:
            os.close(self._last[1])
        self._last = (directory, here)
        return here, encode(name)

    @contextlib.contextmanager
    def _failures(self, place: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise Unfit(strerror(error)) from None
        except (OSError, ValueError) as error:
            number = getattr(error, "errno", None)
            if number in _FULL:
                message = f"{self.shown / place}: it cannot be written: {strerror(error)}"
                fix = "free space there, or name another directory; run it again to go on"
                raise OutputError(message, fix=fix) from None
            in_the_way = {errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY}
            raise Unfit(IN_THE_WAY if number in in_the_way else strerror(error)) from None


def _lock(directory: int) -> int | None:
    """A descriptor of the lock of a host's directory, which keeps it; None: another process has it.

    Whoever can open a file can lock it: so not the directory is locked, but a file that others cannot open.
    Raises OSError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        descriptor = os.open(_LOCK, flags, 0o600, dir_fd=directory)
        try:
            os.fchmod(descriptor, 0o600)  # if a process was killed, everything here may have got a mode since
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            pass  # NFS may have no locks: then what another process writes is noticed, or is the same
        with contextlib.suppress(FileNotFoundError):  # the other process has just removed it
            if os.path.samestat(os.fstat(descriptor), os.lstat(_LOCK, dir_fd=directory)):
                return descriptor
        os.close(descriptor)


def _part(place: str) -> bytes:
    """The name of an incomplete file: of fixed length, since a name has 255 bytes at most."""
    name = encode(place.rpartition("/")[2])
    return encode(PART_PREFIX + hashlib.sha256(name).hexdigest()[:32])


def _open_part(above: int, place: str, flags: int) -> int:
    """A descriptor of an incomplete file. Raises OSError, and Unfit if something else has its name."""
    always = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(_part(place), flags | always, 0o600, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a link, a pipe, ..
            raise Unfit(_MEDDLED) from None
        raise
    found = os.fstat(descriptor)
    with contextlib.suppress(Refused):
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:  # no link to a file elsewhere
            check_opened(descriptor, place)
            return descriptor
    os.close(descriptor)
    raise Unfit(_MEDDLED)


def _enter(above: int, place: str, *, make: bool) -> int:
    """A descriptor (O_PATH) of the directory at a place, of which `above` has the last level; it is no link.

    Raises OSError, and Unfit if another user made it, or can write to it, and so exchange what is in it.
    """
    name = encode(place.rpartition("/")[2])
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=above)
    descriptor = os.open(name, _DIRECTORY, dir_fd=above)
    try:
        check_opened(descriptor, place, above)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, Refused):
            raise Unfit(error.message) from None
        raise
    return descriptor
