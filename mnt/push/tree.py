"""The entries of a directory tree to push: a walk that obeys ignore files and reports special files."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mnt.errors import MntError, UsageError
from mnt.paths import expanded
from mnt.push import ignore
from mnt.remote.common.files import read_bytes, strerror
from mnt.remote.common.levels import enter, open_without_links
from mnt.remote.common.mounts import mount_id
from mnt.remote.common.owners import (
    checked_directory,
    judge_mount,
    own_unnamed_status,
    shared_group,
    status,
)
from mnt.remote.common.refusal import Refused
from mnt.remote.push.entries import DEEPEST

# A .mntignore overrides every .gitignore, in whatever directory it is, because it is only about pushing.
IGNORE_FILES = (b".mntignore", b".gitignore")

MOST_BYTES = 64 << 20  # of all paths, and the targets of links; a million files have about as many
_LONGEST = 4095  # bytes of a path (PATH_MAX, without its end)
_NAME_IT = "name the directory to push: mnt push SRC"
_MODE_BITS = 0o777  # set-uid, set-gid and sticky belong to this machine, not to the code


@dataclass(frozen=True)
class Entry:
    """An entry of a tree that is pushed. The walk leaves the `value` of a file to the manifest."""

    path: str  # relative to the tree; "" for the tree itself; may contain surrogate escapes
    kind: str  # "dir", "file" or "link"
    mode: int  # permission bits; 0o777 for a link
    size: int = 0  # bytes; 0 if it is not a file
    value: str = ""  # SHA-256 (hex) of a file, target of a link, "" for a directory


@dataclass(frozen=True)
class Tree:
    """The result of a walk."""

    root: Path
    entries: tuple[Entry, ...]  # in the byte order of their paths: a directory comes before its content
    notes: tuple[str, ...]  # one line each, about special files and links that point out of the tree
    started: float = 0.0  # epoch seconds: when the walk began


_Rules = dict[bytes, tuple[ignore.IgnoreFile, ...]]  # its name -> those in force, outermost directory first


class TooLarge(MntError):
    """The tree has more entries, or longer paths, than were asked for."""


def walk(source: str | os.PathLike[str], most: int | None = None, most_bytes: int = MOST_BYTES) -> Tree:
    """Walk `source` as it is now.

    Ignore files apply from the top of the git work tree that contains `source`, else from `source`.
    Directories are included even if they are empty; `.git` is never included.

    Args:
        most: entries, not more; None: any number.
        most_bytes: of all paths together.

    Raises:
        TooLarge: the tree has more than `most` entries, or its paths more than `most_bytes`.
        UsageError: there is no such directory, it contains nothing to push, or another user can write to it.
            The members of its own group may, if this user is one of them.
        MntError: an entry cannot be read, or another user has mounted a file system in the tree.
    """
    try:
        root = Path(expanded(os.fspath(source)))
    except OSError as error:
        raise UsageError(f"{source}: {strerror(error)}", fix=_NAME_IT) from None
    started = time.time()
    root = _checked(root)
    top = work_tree(root) or root
    notes: list[str] = []
    try:
        entries = [Entry("", "dir", _mode(root.stat(), "."))]
        files = ignore.IgnoreFiles()
        room = _Room(root, most_bytes)
        walker = _walk(root, _below(top, root), files, _rules_above(root, top, files), room, notes)
        found = list(walker if most is None else itertools.islice(walker, most + 1))
        if most is not None and len(found) > most:
            raise TooLarge(f"{root} has more than {most:,} entries")
        entries += sorted(found, key=lambda entry: os.fsencode(entry.path))
    except ignore.TooMuch as error:
        raise MntError(printable(str(error)), fix="shorten it, or push a directory below it") from None
    except OSError as error:
        raise MntError(
            f"{printable(str(error.filename))}: {strerror(error)}",
            fix="make it readable, or list it in .mntignore",
        ) from error
    if all(entry.kind == "dir" for entry in entries):
        raise UsageError(f"{root} contains nothing to push", fix="check its .gitignore and .mntignore files")
    return Tree(root, tuple(entries), tuple(sorted(notes)), started)


def _checked(source: Path) -> Path:
    """The directory without links on the way. Raises UsageError: see `walk`."""
    try:
        found = status(os.path.join(os.getcwd(), source))
        if found is None or not stat.S_ISDIR(found.st_mode):
            problem = "does not exist" if found is None else "is not a directory"
            raise UsageError(f"{source} {problem}", fix=_NAME_IT)
        group = shared_group(source)
        with checked_directory(os.path.join(os.getcwd(), source), group, inside_closed=True) as directory:
            return Path(os.readlink(f"/proc/self/fd/{directory}"))
    except Refused as refusal:
        raise UsageError(refusal.message, fix=refusal.fix) from None
    except OSError as error:
        raise UsageError(f"{source}: {strerror(error)}", fix=_NAME_IT) from None


def open_inside(root: Path, path: str, flags: int = os.O_RDONLY | os.O_NONBLOCK) -> int:
    """A descriptor of the file or directory `path` in the tree at `root`, which is resolved.

    No level of it may be a link, `root` and those above included. Raises OSError, and MntError for what
    another user has mounted, which might never answer.
    """
    try:
        return open_without_links(os.fsencode(os.path.join(root, path)), flags, judge_mount)
    except OSError as error:
        raise _named(error, root, path) from None
    except Refused as refusal:
        raise _mounted(refusal) from None


def _mounted(refusal: Refused) -> MntError:
    return MntError(printable(refusal.message), fix=f"{refusal.fix}; or list it in .mntignore")


def _named(error: OSError, root: Path, path: str) -> OSError:
    """The error, with the whole path."""
    return type(error)(error.errno, strerror(error), os.path.join(root, path))


@contextlib.contextmanager
def _opened(root: Path, path: str = "", *, how: int = os.O_RDONLY) -> Iterator[int]:
    """A descriptor of a directory; see `open_inside`."""
    descriptor = open_inside(root, path, how | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def ignore_file(root: Path) -> Path | None:
    """The `.mntignore` at the top of a tree, to which lines can be added; it may not exist yet.

    None: it is no regular file, so a walk does not read it. If it is a link, what is written to it goes where
    the author of the tree wants.
    """
    file = root / os.fsdecode(IGNORE_FILES[0])
    try:
        return file if stat.S_ISREG(os.lstat(file).st_mode) else None
    except FileNotFoundError:
        return file
    except OSError:
        return None


def printable(path: str) -> str:
    """A path as it can be shown: control characters and undecodable bytes as escapes, no quotes."""
    if path.isprintable():
        return path
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in path)


def work_tree(root: Path) -> Path | None:
    """The nearest directory at or above `root` that contains `.git`; None: there is none.

    A `.git` of another user does not count, as for git (git-config(1), safe.directory): anyone can make one
    in /tmp.
    """
    above = (root, *root.parents)
    return next((place for place in above if own_unnamed_status(place / ".git", follow=False)), None)


def _below(top: Path, place: Path) -> bytes:
    """The prefix that makes a path in `place` relative to `top`: "" or "dir/dir/"."""
    return b"" if place == top else os.fsencode(place.relative_to(top)) + b"/"


def _rules_above(root: Path, top: Path, files: ignore.IgnoreFiles) -> _Rules:
    rules: _Rules = dict.fromkeys(IGNORE_FILES, ())
    for place in reversed([parent for parent in root.parents if parent.is_relative_to(top)]):
        with _opened(place, how=os.O_PATH) as directory:  # it may have no listing
            rules = _with_rules_of(directory, place, files, rules, len(_below(top, place)))
    return rules


def _with_rules_of(
    directory: int, place: Path, files: ignore.IgnoreFiles, rules: _Rules, offset: int
) -> _Rules:
    """The rules in a directory: those above it, and those of its ignore files.

    Args:
        directory: its descriptor.
        place: its path, for errors.
    """
    for name in IGNORE_FILES:
        text = _read_rules(directory, place, name)
        if text:
            above = [file for each in rules.values() for file in each]
            file = files.read(str(place / os.fsdecode(name)), text, offset, above)
            rules = {**rules, name: (*rules[name], file)}
    return rules


def _read_rules(directory: int, place: Path, name: bytes) -> bytes:
    """The text of an ignore file; empty if it is not a regular file (git follows no link here either)."""
    try:
        with _entered(name, directory, mount_id(directory), place) as file:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return b""
            return read_bytes(f"/proc/self/fd/{file}", ignore.MOST_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise _named(error, place, os.fsdecode(name)) from None


@contextlib.contextmanager
def _entered(name: str | bytes, directory: int, mount: str, place: Path) -> Iterator[int]:
    """A descriptor (O_PATH) of what has a name in a directory, also of a link.

    Args:
        mount, place: of the directory; `place` is its path.

    Raises OSError, and MntError for what another user has mounted there, which might never answer.
    """
    try:
        descriptor, _ = enter(name, directory, mount, str(place / os.fsdecode(name)), judge_mount)
    except Refused as refusal:
        raise _mounted(refusal) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _ignored(files: ignore.IgnoreFiles, rules: _Rules, path: bytes) -> bool:
    verdicts = (files.verdict(rules[name], path) for name in IGNORE_FILES)
    return next((verdict for verdict in verdicts if verdict is not None), False)


class _Room:
    """What the paths of a tree may take together: with few inodes, somebody can make terabytes of them."""

    def __init__(self, root: Path, most: int) -> None:
        self._root, self._most, self._left = root, most, most

    def take(self, path: str, size: int) -> None:
        """Raises TooLarge, and MntError for a path that is too long."""
        if size > _LONGEST:
            problem = f"{printable(path[:100])}..: a path with more than {_LONGEST:,} bytes"
            raise MntError(problem, fix="list it in .mntignore")
        self._left -= size
        if self._left < 0:
            raise TooLarge(
                f"{printable(str(self._root))}: paths with more than {self._most:,} bytes together",
                fix="list in .mntignore what the hosts do not need, or push a directory below it",
            )


def _walk(
    root: Path, prefix: bytes, files: ignore.IgnoreFiles, rules: _Rules, room: _Room, notes: list[str]
) -> Iterator[Entry]:
    """Everything below `root` to push, in any order.

    A directory whose own ignore files leave nothing of it is none of that: `fetched`, a cache, a virtual
    environment. git has no such directory either.

    Args:
        prefix: makes a path below `root` relative to the top of the work tree.
    """
    pending: list[tuple[str, _Rules, Entry | None]] = [("", rules, None)]
    while pending:
        inside, above, own = pending.pop()
        with _opened(root, inside) as directory, os.scandir(directory) as entries:
            offset = len(prefix) + len(os.fsencode(inside))
            mount, place = mount_id(directory), root / inside
            rules = _with_rules_of(directory, place, files, above, offset)
            left_out = rules is not above
            for entry in entries:
                path = inside + entry.name
                is_dir = entry.is_dir(follow_symlinks=False)
                seen = prefix + os.fsencode(path) + (b"/" if is_dir else b"")
                if entry.name == ".git" or _ignored(files, rules, seen):
                    continue
                room.take(path, len(seen) - len(prefix))
                left_out = False
                if is_dir and path.count("/") >= DEEPEST - 1:
                    problem = f"{printable(path[:100])}..: more than {DEEPEST} directories deep"
                    raise MntError(problem, fix="list it in .mntignore")
                try:
                    with _entered(entry.name, directory, mount, place) as opened:
                        found = _entry(opened, path, notes)
                except OSError as error:
                    raise _named(error, root, path) from None
                if is_dir:
                    pending.append((path + "/", rules, found))
                elif found is not None:
                    room.take(path, len(os.fsencode(found.value)))  # of a link
                    yield found
        if own is not None and not left_out:
            yield own


def _entry(opened: int, path: str, notes: list[str]) -> Entry | None:
    """The entry of a directory, of which a descriptor (O_PATH) is given. Raises OSError."""
    found = os.fstat(opened)
    if stat.S_ISDIR(found.st_mode):
        return Entry(path, "dir", _mode(found, path))
    if stat.S_ISREG(found.st_mode):
        return Entry(path, "file", _mode(found, path), found.st_size)
    if stat.S_ISLNK(found.st_mode):
        target = os.readlink("", dir_fd=opened)
        landing = os.path.normpath(os.path.join(os.path.dirname(path), target))
        if os.path.isabs(landing) or landing.split("/")[0] == "..":
            notes.append(
                f"{printable(path)}: a link to {printable(target)}, outside the tree; pushed unchanged"
            )
        return Entry(path, "link", 0o777, value=target)
    notes.append(f"{printable(path)}: {_SPECIAL.get(stat.S_IFMT(found.st_mode), 'special file')}; left out")
    return None


_SPECIAL = {stat.S_IFSOCK: "socket", stat.S_IFIFO: "fifo", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


def _mode(found: os.stat_result, path: str) -> int:
    """The permission bits. Raises MntError if the owner of the copy could not read it."""
    mode = found.st_mode & _MODE_BITS
    needed = 0o500 if stat.S_ISDIR(found.st_mode) else 0o400
    if mode & needed != needed:
        raise MntError(
            f"{printable(path)}: mode {mode:04o}: its owner may not read it",
            fix="run chmod u+rX on it, or list it in .mntignore",
        )
    return mode
