"""Copy DeepSpeed's compiled ops into a lab, so they are not built again.

Root copies them, and jobs in the lab run them. So only what root or this user has made is copied, and only
what all users can read. Other users may have left links, pipes and files of their own among it, and may add
more meanwhile.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path

from mnt.remote.common.mounts import mount_id
from mnt.remote.common.owners import accepts, checked_directory
from mnt.remote.common.refusal import Refused

# Torch makes it while it loads an op, and waits for its end: that of a killed build never ends.
_LOCK = "lock"
_MOST_NAMES = 10_000  # to look at in one directory
_MOST_FILES = 10_000
_MOST_BYTES = 1 << 30  # of all files; the ops for one GPU have some 100 MiB
_DEEPEST = 8  # directories in each other; torch makes two
_PIECE = 1 << 20
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class _Room:
    """How many files, and bytes of them, may still be copied."""

    def __init__(self) -> None:
        self.files, self.bytes = _MOST_FILES, _MOST_BYTES

    def take(self, size: int) -> bool:
        fits = self.files > 0 and size <= self.bytes
        if fits:
            self.files -= 1
            self.bytes -= size
        return fits


def copy(source: str, target: Path, uid: int) -> None:
    """Copy regular files and directories, with the times of the files. The copy belongs to `uid`.

    What is not to be copied is left out, and so is what exceeds 1 GiB or 10,000 files. Nothing is copied if
    another user could replace `source`.

    Args:
        target: an empty directory.
    """
    os.chown(target, uid, uid)
    with ExitStack() as opened:
        try:
            top = opened.enter_context(checked_directory(source))
        except (Refused, OSError):
            return
        _copy_directory(top, target, uid, _Room(), _DEEPEST)


def is_copied(name: str, found: os.stat_result, *, own: bool) -> bool:
    """Whether something in a directory is copied. Pure.

    Args:
        own: it belongs to root or to this user.
    """
    if not own or name == _LOCK:
        return False
    if stat.S_ISDIR(found.st_mode):
        return True
    # Others may have linked a file here that they cannot read, if the kernel lets them
    # (fs.protected_hardlinks).
    for_all = found.st_mode & stat.S_IROTH and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and bool(for_all)


def _copy_directory(directory: int, target: Path, uid: int, room: _Room, deepest: int) -> None:
    for name, descriptor, found in _own_entries(directory):
        path = target / name
        if stat.S_ISREG(found.st_mode):
            if room.take(found.st_size):
                _copy_file(descriptor, found, path, uid)
        elif deepest:
            path.mkdir()
            path.chmod(0o755)
            os.chown(path, uid, uid)
            _copy_directory(descriptor, path, uid, room, deepest - 1)


def _own_entries(directory: int) -> Iterator[tuple[str, int, os.stat_result]]:
    """What is to be copied of a directory (O_PATH): the name, a descriptor (O_PATH), and its status."""
    listing = os.open(".", _READ | os.O_DIRECTORY, dir_fd=directory)
    try:
        with os.scandir(listing) as entries:
            names = [entry.name for entry in islice(entries, _MOST_NAMES)]
    finally:
        os.close(listing)
    mount = mount_id(directory)
    for name in names:
        with _opened(name, directory) as descriptor:
            # A file system that is mounted here is not asked: another user's (FUSE) may never answer.
            if descriptor is not None and mount and mount_id(descriptor) == mount:
                found = os.fstat(descriptor)
                if is_copied(name, found, own=accepts(found.st_uid)):
                    yield name, descriptor, found


@contextmanager
def _opened(name: str, directory: int) -> Iterator[int | None]:
    """A descriptor (O_PATH) of what has that name, also of a link; None if it is gone."""
    try:
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _copy_file(descriptor: int, found: os.stat_result, target: Path, uid: int) -> None:
    """Copy as many bytes as the file had."""
    left = found.st_size
    mode = 0o755 if found.st_mode & stat.S_IXUSR else 0o644
    with (
        open(os.open(f"/proc/self/fd/{descriptor}", _READ), "rb") as source,
        open(target, "xb") as copied,
    ):
        while left > 0 and (piece := source.read(min(left, _PIECE))):
            copied.write(piece)
            left -= len(piece)
    target.chmod(mode)
    os.chown(target, uid, uid)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
