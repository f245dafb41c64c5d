"""The directory of one host's files on the head. No name and no link of a host leads out of it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from mnt.errors import OutputError, UsageError
from mnt.fetch.places import PART_PREFIX
from mnt.fetch.plan import Here
from mnt.remote.common.files import encode, make_directories, strerror, write_all
from mnt.remote.common.owners import checked_directory, shared_group
from mnt.remote.common.refusal import Refused
from mnt.tasks.fetch import Entry

_BLOCK = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def opened(directory: str) -> Iterator[int]:
    """A descriptor of the directory for the hosts' files, which is made if need be.

    Raises UsageError, also if another user could replace it, or files in it. The members of its own group
    may, if this user is one of them.
    """
    try:
        make_directories(directory, 0o755)
        path = os.path.join(os.getcwd(), directory)
        checked = checked_directory(path, shared_group(directory), inside_closed=True)
    except OSError as error:
        raise UsageError(f"--to {directory}: {strerror(error)}") from None
    try:
        with checked as descriptor:
            yield descriptor
    except Refused as refusal:
        raise UsageError(f"--to {directory}: {refusal.message}", fix=refusal.fix) from None


class Unfit(Exception):
    """A file cannot be written at its place, whatever the disk's state; the message says why."""


class Store:
    """The files of one host, in the directory with its name.

    Places are relative paths that `places.below` accepts. Every method raises Unfit if something else is in
    the way, and OutputError if the disk is full or fails.

    Args:
        directory: the descriptor that `opened` yields.
        host: its name; the directory is made.
        umask: that of the process.
    """

    def __init__(self, directory: int, host: str, umask: int) -> None:
        self._umask = umask
        self.shown = Path(os.readlink(f"/proc/self/fd/{directory}"), host)
        try:
            with self._failures(host):
                self._top = _enter(directory, encode(host), make=True)
        except Unfit as unfit:
            raise OutputError(
                f"{self.shown}: {unfit}", fix="move it away, or name another directory"
            ) from None
        self._last = ("", self._top)  # a directory that is open, by its place

    def close(self) -> None:
        if self._last[1] != self._top:
            os.close(self._last[1])
        os.close(self._top)

    def free(self) -> int:
        """Bytes that this user may still write."""
        found = os.fstatvfs(self._top)
        return found.f_bavail * found.f_frsize

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
                descriptor = os.open(_part(place), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=above)
            except FileNotFoundError:
                return 0, ""
            with open(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode) or not 0 < found.st_size <= size:
                    return 0, ""
                digest = hashlib.sha256()
                for block in iter(lambda: file.read(_BLOCK), b""):
                    digest.update(block)
                return found.st_size, digest.hexdigest()

    def write(self, place: str, at: int, data: bytes) -> None:
        """Write the next bytes of an incomplete file; what is after them is cut off."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._failures(place):
            above, _ = self._above(place, make=True)
            with open(os.open(_part(place), flags, 0o600, dir_fd=above), "wb", buffering=0) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise Unfit("something else has the name of its incomplete file")
                os.ftruncate(file.fileno(), at)
                file.seek(at)
                write_all(file, data)

    def finish(self, place: str, entry: Entry) -> None:
        """Give a file that is complete its time, mode and name. Other users get no permission to write."""
        with self._failures(place):
            above, name = self._above(place, make=False)
            part = _part(place)
            mode = (entry.mode & 0o755 & ~self._umask) | 0o600
            os.chmod(part, mode, dir_fd=above)
            with contextlib.suppress(OSError, OverflowError):  # a time that the file system cannot store
                os.utime(part, ns=(entry.mtime, entry.mtime), dir_fd=above)
            os.replace(part, name, src_dir_fd=above, dst_dir_fd=above)

    def link(self, place: str, target: str) -> None:
        """Make a link; one that is there is replaced."""
        with self._failures(place):
            above, name = self._above(place, make=True)
            part = _part(place)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part, dir_fd=above)
            os.symlink(encode(target), part, dir_fd=above)
            os.replace(part, name, src_dir_fd=above, dst_dir_fd=above)

    def _above(self, place: str, *, make: bool) -> tuple[int, bytes]:
        """A descriptor of a place's directory, and the name in it. No level is a link. Raises OSError."""
        directory, _, name = place.rpartition("/")
        if self._last[0] == directory:
            return self._last[1], encode(name)
        here = os.dup(self._top)
        for level in filter(None, directory.split("/")):
            try:
                inside = _enter(here, encode(level), make=make)
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
            raise Unfit(
                "a file, link or directory is in its way here" if number in in_the_way else strerror(error)
            ) from None


def _part(place: str) -> bytes:
    """The name of an incomplete file: of fixed length, since a name has 255 bytes at most."""
    name = encode(place.rpartition("/")[2])
    return encode(PART_PREFIX + hashlib.sha256(name).hexdigest()[:32])


def _enter(above: int, name: bytes, *, make: bool) -> int:
    """A descriptor of a directory, which is no link. Raises OSError."""
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=above)
    return os.open(name, _DIRECTORY, dir_fd=above)
