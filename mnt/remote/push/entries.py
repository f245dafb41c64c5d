"""The entries of a manifest: read, and compared with a tree. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import NamedTuple

from mnt.remote.common.files import parse_json
from mnt.remote.common.refusal import Refused

DEEPEST = 200  # directories in each other: Python's own functions for trees are recursive
_BLOCK = 1 << 20


class Entry(NamedTuple):
    """A line of a manifest, as in mnt/push/manifest.py, its names as bytes."""

    path: bytes
    kind: str
    mode: int
    size: int
    value: str

    @property
    def target(self) -> bytes:
        return self.value.encode("utf-8", "surrogateescape")


def shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


def parse_manifest(document: bytes) -> list[Entry]:
    """The entries of a manifest. Raises Refused if writing them could leave the tree.

    Every entry must be in a directory of the manifest itself. Then nothing is ever written through a link,
    wherever it points.
    """
    try:
        rows = parse_json(document)
        if rows["format"] != 1:
            raise Refused(f"the manifest has format {rows['format']!r}; this mnt knows 1")
        entries = [
            Entry(path.encode("utf-8", "surrogateescape"), str(kind), int(mode), int(size), str(value))
            for path, kind, mode, size, value in rows["entries"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(f"the manifest cannot be read: {error}") from error
    directories: set[bytes] = set()
    seen: set[bytes] = set()
    for entry in entries:
        _check_entry(entry, directories, seen)
        seen.add(entry.path)
        if entry.kind == "dir":
            directories.add(entry.path)
    if b"" not in directories:
        raise Refused("the manifest lacks the top directory")
    return entries


def _check_entry(entry: Entry, directories: set[bytes], seen: set[bytes]) -> None:
    name = entry.path.rpartition(b"/")[2]
    inside = entry.path == b"" or (
        name not in (b"", b".", b"..")
        and b"\0" not in name
        and not entry.path.startswith(b"/")
        and entry.path.rpartition(b"/")[0] in directories
    )
    if entry.path.count(b"/") >= DEEPEST:
        raise Refused(f"{shown(entry.path[:100])!r}..: more than {DEEPEST} directories deep")
    if not inside:
        raise Refused(f"{shown(entry.path)!r} is not in a directory of the tree")
    if entry.path in seen:
        raise Refused(f"{shown(entry.path)!r} occurs twice")
    if entry.kind not in ("dir", "file", "link") or not 0 <= entry.mode <= 0o777 or entry.size < 0:
        raise Refused(f"{shown(entry.path)!r}: a {entry.kind} of mode {entry.mode:o} is not allowed")


def differs(top: bytes, entry: Entry) -> str | None:
    """How the file at an entry's path differs from it, apart from the bytes of a file; None: it does not."""
    try:
        found = os.lstat(os.path.join(top, entry.path))
    except FileNotFoundError:
        return "is missing"
    kinds: dict[int, str] = {stat.S_IFDIR: "dir", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(found.st_mode), "special file")
    if kind != entry.kind:
        return f"is a {kind}, not a {entry.kind}"
    if kind == "link":
        return None if os.readlink(os.path.join(top, entry.path)) == entry.target else "points elsewhere"
    if found.st_mode & 0o777 != entry.mode:
        return f"has mode {found.st_mode & 0o777:o}, not {entry.mode:o}"
    if kind == "file" and found.st_size != entry.size:
        return f"has {found.st_size} bytes, not {entry.size}"
    return None


def same_bytes(top: bytes, entry: Entry) -> bool:
    """Whether a file has the bytes of its entry; anything else has none."""
    if entry.kind != "file":
        return True
    digest = hashlib.sha256()
    with open(os.path.join(top, entry.path), "rb", buffering=0) as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            digest.update(block)
    return digest.hexdigest() == entry.value
