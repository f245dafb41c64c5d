"""What of a directory tree travels: a walk that honours ignore files and names what it leaves out."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mnt.errors import MntError, UsageError
from mnt.push import ignore

# .mntignore speaks after every .gitignore, whichever directory it lies in: it is about pushing alone.
IGNORE_FILES = (b".mntignore", b".gitignore")

_MODE_BITS = 0o777  # set-uid, set-gid and sticky say something about this machine, not about the code


@dataclass(frozen=True)
class Found:
    """Something that travels. `path` is relative to the tree, "" for its top; may hold surrogate escapes."""

    path: str
    kind: str  # "dir", "file" or "link"
    mode: int  # permission bits; 0o777 for a link
    target: str = ""  # of a link, as it stands


@dataclass(frozen=True)
class Tree:
    """A walked tree: `found` in the byte order of the paths, so a directory comes before what is in it."""

    root: Path
    found: tuple[Found, ...]
    notes: tuple[str, ...]  # one line each: what was left out, and links that lead out of the tree


@dataclass(frozen=True)
class _Rules:
    """The patterns of one ignore file, and how many leading bytes of a path they do not see."""

    patterns: tuple[ignore.Pattern, ...]
    offset: int


_Stack = dict[bytes, tuple[_Rules, ...]]  # ignore file's name -> its rules, outermost directory first


def walk(source: str | os.PathLike[str]) -> Tree:
    """Walk `source` as it is now.

    Ignore files count from the top of the git work tree that `source` lies in, else from `source`.
    Directories travel also when nothing in them does; `.git` never travels.

    Raises:
        UsageError: no such directory, or nothing in it would travel.
        MntError: something cannot be read.
    """
    root = Path(source).expanduser()
    if not root.is_dir():
        problem = "is not a directory" if os.path.lexists(root) else "does not exist"
        raise UsageError(f"{root} {problem}", fix="Give the directory to push: mnt push SRC")
    root = root.resolve()
    top = _work_tree(root)
    found = [Found("", "dir", _mode(root.stat(), "."))]
    notes: list[str] = []
    walker = _walk(root, _below(top, root), _rules_above(root, top), notes)
    try:
        found += sorted(walker, key=lambda entry: os.fsencode(entry.path))
    except OSError as error:
        raise _unreadable(error) from error
    if all(entry.kind == "dir" for entry in found):
        raise UsageError(
            f"{root} holds nothing to push", fix="See what .gitignore and .mntignore leave out there."
        )
    return Tree(root, tuple(found), tuple(sorted(notes)))


def printable(path: str) -> str:
    """A path as it can be shown: control characters and undecodable bytes as escapes, no quotes."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in path)


def _work_tree(root: Path) -> Path:
    """The nearest directory at or above `root` that holds `.git`; `root` itself where there is none."""
    return next((place for place in (root, *root.parents) if os.path.lexists(place / ".git")), root)


def _below(top: Path, place: Path) -> bytes:
    """What to put before a path in `place` to make it one in `top`: "" or "dir/dir/"."""
    return b"" if place == top else os.fsencode(place.relative_to(top)) + b"/"


def _rules_above(root: Path, top: Path) -> _Stack:
    rules: _Stack = dict.fromkeys(IGNORE_FILES, ())
    if root != top:
        for place in reversed([parent for parent in root.parents if parent.is_relative_to(top)]):
            rules = _with_rules_of(place, rules, len(_below(top, place)))
    return rules


def _with_rules_of(directory: str | os.PathLike[str], rules: _Stack, offset: int) -> _Stack:
    own = {name: _read_rules(os.path.join(os.fsencode(directory), name)) for name in IGNORE_FILES}
    return {
        name: (*rules[name], _Rules(patterns, offset)) if patterns else rules[name]
        for name, patterns in own.items()
    }


def _read_rules(path: bytes) -> tuple[ignore.Pattern, ...]:
    """The patterns in a file; none where there is no such regular file (git follows no link here either)."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return ()
        with open(path, "rb") as file:
            return ignore.parse(file.read())
    except FileNotFoundError:
        return ()


def _ignored(rules: _Stack, path: bytes, is_dir: bool) -> bool:
    for name in IGNORE_FILES:
        for one in reversed(rules[name]):
            answer = ignore.verdict(one.patterns, path[one.offset :], is_dir)
            if answer is not None:
                return answer
    return False


def _walk(root: Path, prefix: bytes, rules: _Stack, notes: list[str]) -> Iterator[Found]:
    """Everything below `root` that travels, in no order.

    Args:
        prefix: what precedes a path below `root` to make it relative to the top of the work tree.
    """
    pending = [("", rules)]
    while pending:
        inside, rules = pending.pop()
        directory = os.path.join(root, inside)
        rules = _with_rules_of(directory, rules, len(prefix) + len(os.fsencode(inside)))
        with os.scandir(directory) as entries:
            for entry in entries:
                path = inside + entry.name
                is_dir = entry.is_dir(follow_symlinks=False)
                if entry.name == ".git" or _ignored(rules, prefix + os.fsencode(path), is_dir):
                    continue
                if is_dir:
                    pending.append((path + "/", rules))
                one = _look(entry, path, notes)
                if one is not None:
                    yield one


def _look(entry: os.DirEntry[str], path: str, notes: list[str]) -> Found | None:
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        return Found(path, "dir", _mode(status, path))
    if stat.S_ISREG(status.st_mode):
        return Found(path, "file", _mode(status, path))
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(entry.path)
        if _leads_out(path, target):
            notes.append(
                f"{printable(path)}: a link to {printable(target)}, outside the tree; it travels as it is"
            )
        return Found(path, "link", 0o777, target)
    notes.append(f"{printable(path)}: {_SPECIAL.get(stat.S_IFMT(status.st_mode), 'special file')}; left out")
    return None


_SPECIAL = {stat.S_IFSOCK: "socket", stat.S_IFIFO: "fifo", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


def _leads_out(path: str, target: str) -> bool:
    return (
        os.path.isabs(target)
        or os.path.normpath(os.path.join(os.path.dirname(path), target)).split("/")[0] == ".."
    )


def _mode(status: os.stat_result, path: str) -> int:
    """The permission bits. Raises MntError where the owner of the copy could not read it to check it."""
    mode = status.st_mode & _MODE_BITS
    needed = 0o500 if stat.S_ISDIR(status.st_mode) else 0o400
    if mode & needed != needed:
        raise MntError(
            f"{printable(path)}: mode {mode:04o}: its owner may not read it",
            fix="chmod u+rX it, or list it in .mntignore.",
        )
    return mode


def _unreadable(error: OSError) -> MntError:
    return MntError(
        f"{printable(str(error.filename))}: {error.strerror}",
        fix="Make it readable, or list it in .mntignore.",
    )
