"""What a tree contains that may not be meant for the hosts: keys, .env files, environments, checkpoints.

Pure.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mnt.errors import UsageError
from mnt.push.tree import Entry, printable

LARGE = 100_000_000  # bytes of a file
MANY = 10_000  # files of a tree
_NAMED = 20  # keys in an error

KINDS = {
    "env-file": "environment variables, perhaps with secrets",
    "virtual-environment": "virtual environment",
    "checkpoint": "checkpoints",
    "large-file": f"larger than {LARGE // 1_000_000} MB",
    "many-files": f"more than {MANY:,} files",
}


@dataclass(frozen=True)
class Notice:
    """One thing that is worth a look before it is sent."""

    kind: str  # a key of KINDS
    paths: tuple[str, ...]  # of files or directories
    files: int
    bytes: int
    ignore: tuple[str, ...]  # the lines of a .mntignore in the top directory that leave it out

    def document(self) -> dict[str, Any]:
        return asdict(self)


def notices(entries: Iterable[Entry]) -> list[Notice]:
    """What is worth a look in a tree, each file once, except in the count of files."""
    rest = [entry for entry in entries if entry.kind == "file"]
    total, found = rest, []
    for kind, place_of in (
        ("virtual-environment", _environment_of(rest)),
        ("env-file", lambda path: path if _is_env_file(path) else None),
        ("checkpoint", _checkpoint_of(rest)),
    ):
        places = {entry.path: place for entry in rest if (place := place_of(entry.path)) is not None}
        found += _notices(kind, [entry for entry in rest if entry.path in places], places)
        rest = [entry for entry in rest if entry.path not in places]
    large = [entry for entry in rest if entry.size > LARGE]
    found += _notices("large-file", large, {entry.path: entry.path for entry in large})
    if len(total) > MANY:
        place = _fullest(total)
        size = sum(entry.size for entry in total)
        found.append(Notice("many-files", (place,), len(total), size, (ignore_line(place),) if place else ()))
    return found


def _notices(kind: str, entries: list[Entry], places: dict[str, str]) -> list[Notice]:
    """One notice for all, or none. A place that is a directory ends with `/`."""
    if not entries:
        return []
    paths = tuple(sorted({places[entry.path] for entry in entries}))
    lines = dict.fromkeys(ignore_line(path) for path in paths if path != "/")
    return [Notice(kind, paths, len(entries), sum(entry.size for entry in entries), tuple(lines))]


def ignore_line(path: str) -> str:
    """The line of an ignore file for a path; what such a line cannot contain becomes `?`."""
    text = re.sub(r"([\\*?\[])", r"\\\1", path)
    if not text.isprintable():
        text = "".join(char if char.isprintable() else "?" * len(os.fsencode(char)) for char in text)
    return "/" + (text[:-1] + "\\ " if text.endswith(" ") else text)


def _is_env_file(path: str) -> bool:
    name = posixpath.basename(path)
    sample = name.rpartition(".")[2] in ("example", "sample", "template")
    return name == ".env" or (name.startswith(".env.") and not sample)


Placing = Callable[[str], "str | None"]  # takes a file; the directory, or the file, that a notice names


def _environment_of(entries: Iterable[Entry]) -> Placing:
    """Virtual environments (PEP 405: pyvenv.cfg), and those of conda (conda-meta/)."""
    tops = set()
    for entry in entries:
        parent, name = posixpath.split(entry.path)
        if name == "pyvenv.cfg":
            tops.add(parent + "/")
        elif posixpath.basename(parent) == "conda-meta":
            tops.add(posixpath.dirname(parent) + "/")
    return _topmost(tops.__contains__)


_SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors", ".distcp", ".gguf")
_WEIGHTS = re.compile(r"(?:pytorch_|adapter_|flax_|tf_)?model(?:-\d+-of-\d+)?\.(?:bin|msgpack|h5)")
# What transformers, DeepSpeed and people call the directory of a checkpoint.
_DIRECTORY = re.compile(r"checkpoint[-_]\d+|global_step\d+|checkpoints?|ckpts?")


def _checkpoint_of(entries: Iterable[Entry]) -> Placing:
    """Files by their names; directories by theirs, unless they contain Python code."""
    code = _with_those_above(_directory(entry.path) for entry in entries if entry.path.endswith(".py"))
    directory_of = _topmost(
        lambda place: bool(_DIRECTORY.fullmatch(posixpath.basename(place[:-1]))) and place not in code
    )

    def place(path: str) -> str | None:
        if (directory := directory_of(path)) is not None:
            return directory
        name = posixpath.basename(path)
        return path if name.endswith(_SUFFIXES) or _WEIGHTS.fullmatch(name) else None

    return place


# A directory has a `/` at its end; the tree itself is `/`. Long paths are common to many files, so each
# directory is looked at once, and no path character by character.


def _directory(path: str) -> str:
    """The directory in which a file is."""
    return path.rpartition("/")[0] + "/"


def _with_those_above(directories: Iterable[str]) -> dict[str, None]:
    """Directories, and all those in which they are."""
    found: dict[str, None] = {}
    for directory in directories:
        while directory not in found:
            found[directory] = None
            directory = _directory(directory[:-1])
    return found


def _topmost(fits: Callable[[str], bool]) -> Placing:
    """Finds the first directory above a file, from the top, that fits."""
    known = {"/": "/" if fits("/") else None}

    def place(path: str) -> str | None:
        way, directory = [], _directory(path)
        while directory not in known:
            way.append(directory)
            directory = _directory(directory[:-1])
        found = known[directory]
        for directory in reversed(way):
            if found is None and fits(directory):
                found = directory
            known[directory] = found
        return found

    return place


def _fullest(entries: Iterable[Entry]) -> str:
    """The deepest directory with more than half of the files, else the fullest at the top; "": none."""
    counts = Counter(_directory(entry.path) for entry in entries)
    places = sorted(_with_those_above(list(counts)), key=lambda place: (-place.count("/"), place))
    places.remove("/")
    for place in places:  # those below it come before it
        counts[_directory(place[:-1])] += counts[place]
    if not places:
        return ""
    most = [place for place in places if counts[place] > counts["/"] / 2]
    tops = [place for place in places if place.count("/") == 1]
    return max(most, key=len) if most else max(tops, key=counts.__getitem__)


# --- private keys ------------------------------------------------------------------------------------------


def to_leave_out(file: Path | None) -> str:
    """What to do with lines that leave something out; `file` as `tree.ignore_file` returns it."""
    return "add to .mntignore" if file else "make .mntignore a regular file, which it is not, with"


def check_keys(file: Path | None, keys: Sequence[str]) -> None:
    """Raises UsageError if there are private keys.

    Args:
        file: the tree's ignore file, as `tree.ignore_file` returns it.
    """
    if not keys:
        return
    named, more = keys[:_NAMED], len(keys) - _NAMED
    lines = shlex.join(map(ignore_line, named))
    append = f"printf '%s\\n' {lines} >> {shlex.quote(str(file))}"
    leave_out = append if file else f"{to_leave_out(file)}: {lines}"
    raise UsageError(
        f"the tree contains {len(keys)} private keys, which every host would get"
        if len(keys) > 1
        else "the tree contains a private key, which every host would get",
        details=[*map(printable, named), *([f".. and {more} more"] if more > 0 else [])],
        fix=f"{leave_out}; or send them: mnt push --allow-secrets",
    )
