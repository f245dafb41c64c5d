"""The levels of a path, each opened from the one above it. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Callable, Iterator
from typing import List, NamedTuple, Tuple

from mnt.remote.common.mounts import mount_id

_MOST_LINKS = 40  # on the way to one path: path_resolution(7)
Acl = List[Tuple[int, int, int]]  # (tag, permissions, id)


class Level(NamedTuple):
    """A level on the way to a path."""

    path: str  # without links
    after: int  # number of levels that follow
    above: int  # descriptor of the directory in which it has its name
    name: str
    descriptor: int  # O_PATH; -1 if it does not exist
    found: os.stat_result | None  # None: it does not exist

    @property
    def is_link(self) -> bool:
        return self.found is not None and stat.S_ISLNK(self.found.st_mode)

    def acl(self) -> Acl:
        return acl_of(f"/proc/self/fd/{self.descriptor}")


def levels(
    path: str, opened: contextlib.ExitStack, judge_mount: Callable[[str, str], object]
) -> Iterator[Level]:
    """Every level on the way to `path`, which stays open until `opened` ends.

    Ends with the first one that does not exist. Links are followed, and are levels too. Raises OSError.

    Args:
        judge_mount: called with the path and the mount of each level that is on another mount than the one
            above it, before anything of that file system is asked.
    """
    todo, here, links = _parts(path), "/", 0

    def enter(name: str, above: int | None) -> int:
        level = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        opened.callback(os.close, level)
        return level

    root = above = enter("/", None)
    mount = mount_id(root)
    yield Level(here, len(todo), root, ".", root, os.fstat(root))
    while todo:
        name = todo.pop(0)
        shown = os.path.normpath(os.path.join(here, name))
        try:
            descriptor = enter(name, above)
        except (FileNotFoundError, NotADirectoryError):
            yield Level(shown, len(todo), above, name, -1, None)
            return
        before, mount = mount, mount_id(descriptor)
        if mount != before:
            judge_mount(shown, mount)
        level = Level(shown, len(todo), above, name, descriptor, os.fstat(descriptor))
        yield level
        if not level.is_link:
            here, above = shown, descriptor
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), shown)
        target = os.readlink("", dir_fd=descriptor)
        todo = _parts(target) + todo
        if target.startswith("/"):
            here, above = "/", root


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def acl_of(path: str) -> Acl:
    """The access control list of a file (acl(5)) as (tag, permissions, id); empty if it has none."""
    try:
        data = os.getxattr(path, "system.posix_acl_access")
    except OSError:
        return []
    return list(struct.iter_unpack("<HHI", data[4:]))  # linux/posix_acl_xattr.h
