"""The levels of a path, each opened from the one above it. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from typing import Callable, Iterator, List, NamedTuple, Tuple

from mnt.remote.common.mounts import mount_id

_AS_IT_IS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40  # on the way to one path: path_resolution(7)
_DEEPEST = 256  # directories in each other, each with an open descriptor; a push brings no more than 200
Acl = List[Tuple[int, int, int]]  # (tag, permissions, id)
# Called with the path and the mount ("": unknown) of what is on another mount than the directory that has its
# name, before anything of that file system is asked.
JudgeMount = Callable[[str, str], object]


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

    @property
    def is_directory(self) -> bool:
        return self.found is not None and stat.S_ISDIR(self.found.st_mode)

    def acl(self) -> Acl:
        return acl_of(f"/proc/self/fd/{self.descriptor}")


def levels(path: str, opened: contextlib.ExitStack, judge_mount: JudgeMount) -> Iterator[Level]:
    """Every level on the way to `path`, which stays open until `opened` ends.

    Ends with the first one that does not exist. Links are followed, and are levels too. Raises OSError.
    """
    todo, here, links = _parts(path), "/", 0
    root = above = os.open("/", _AS_IT_IS)
    opened.callback(os.close, root)
    mount = mount_id(root)
    yield Level(here, len(todo), root, ".", root, os.fstat(root))
    while todo:
        name = todo.pop(0)
        shown = os.path.normpath(os.path.join(here, name))
        try:
            descriptor, mount = enter(name, above, mount, shown, judge_mount)
        except (FileNotFoundError, NotADirectoryError):
            yield Level(shown, len(todo), above, name, -1, None)
            return
        opened.callback(os.close, descriptor)
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


def enter(name: str | bytes, above: int, mount: str, shown: str, judge_mount: JudgeMount) -> tuple[int, str]:
    """What has a name in a directory: a descriptor (O_PATH), also of a link, and its mount. Raises OSError.

    Args:
        above: descriptor of the directory.
        mount: that of the directory.
        shown: the path, for `judge_mount`.
    """
    descriptor = os.open(name, _AS_IT_IS, dir_fd=above)
    try:
        found = mount_id(descriptor)
        if found != mount or not found:
            judge_mount(shown, found)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, found


def tree(top: int, path: str, judge_mount: JudgeMount) -> Iterator[Level]:
    """Everything in a directory, of which a descriptor (O_PATH) is given. Links are not followed.

    What cannot be entered or listed, and what is in more than _DEEPEST directories, is left out. A level is
    open until the next one is asked for.

    Args:
        path: of the directory, for `judge_mount` and `Level.path`.
    """
    return _inside(top, mount_id(top), path, judge_mount, _DEEPEST)


def _inside(directory: int, mount: str, path: str, judge_mount: JudgeMount, deepest: int) -> Iterator[Level]:
    for name in _names(directory) if deepest else ():
        shown = os.path.join(path, name)
        try:
            descriptor, own = enter(name, directory, mount, shown, judge_mount)
        except OSError:
            continue
        try:
            level = Level(shown, 0, directory, name, descriptor, os.fstat(descriptor))
            yield level
            if level.is_directory:
                yield from _inside(descriptor, own, shown, judge_mount, deepest - 1)
        finally:
            os.close(descriptor)


def _names(directory: int) -> list[str]:
    """The names in a directory, of which a descriptor (O_PATH) is given; none if it cannot be listed."""
    try:
        opened = opened_again(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return []
    try:
        return os.listdir(opened)
    finally:
        os.close(opened)


def opened_again(descriptor: int, flags: int) -> int:
    """A descriptor of what another one (O_PATH) is of. Raises OSError, also for a link."""
    return os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)


def open_without_links(path: bytes, flags: int, judge_mount: JudgeMount) -> int:
    """A descriptor of what is at an absolute path, of which no level may be a link. Raises OSError.

    What was a directory when it was looked at may be a link to files of this user by now, if others can write
    to the directory in which it is; or another user may have mounted a file system there.
    """
    place, shown = os.open("/", _AS_IT_IS), b""
    try:
        mount = mount_id(place)
        for name in filter(None, path.split(b"/")):
            shown += b"/" + name
            inside, mount = enter(name, place, mount, os.fsdecode(shown), judge_mount)
            os.close(place)
            place = inside
        return opened_again(place, flags)
    finally:
        os.close(place)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def acl_of(path: str) -> Acl:
    """The access control list of a file (acl(5)) as (tag, permissions, id); empty if it has none."""
    try:
        data = os.getxattr(path, "system.posix_acl_access")
    except OSError:
        return []
    return list(struct.iter_unpack("<HHI", data[4:]))  # linux/posix_acl_xattr.h
