"""The manifest: all entries of a release, with hashes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from mnt.errors import MntError
from mnt.push.keys import SEARCHED, is_private_key
from mnt.push.tree import Entry, Tree, open_inside, printable
from mnt.remote.common.files import strerror

FORMAT = 1
_BLOCK = 1 << 20  # bytes read at once


@dataclass(frozen=True)
class Manifest:
    """The entries of a tree in the byte order of their paths."""

    entries: tuple[Entry, ...]
    started: float = 0.0  # epoch seconds: before the tree was read
    keys: tuple[str, ...] = ()  # files with a private key in the first MiB

    @cached_property
    def document(self) -> bytes:
        """The manifest as it is sent to hosts and stored there: JSON, the same bytes for the same tree."""
        rows = [[e.path, e.kind, e.mode, e.size, e.value] for e in self.entries]
        return json.dumps({"format": FORMAT, "entries": rows}, separators=(",", ":")).encode("ascii")

    @cached_property
    def sha(self) -> str:
        """SHA-256 (hex) of the document: two trees are equal if and only if these hashes are equal."""
        return hashlib.sha256(self.document).hexdigest()

    @property
    def files(self) -> int:
        return sum(entry.kind == "file" for entry in self.entries)

    @property
    def size(self) -> int:
        """Bytes in all files."""
        return sum(entry.size for entry in self.entries)


def build(tree: Tree) -> Manifest:
    """Read and hash every file of a tree. Raises MntError if a file is not readable or changes meanwhile."""
    keys: list[str] = []
    return Manifest(
        tuple(_entry(tree.root, found, keys) for found in tree.entries), tree.started, tuple(keys)
    )


def _entry(root: Path, found: Entry, keys: list[str]) -> Entry:
    """The entry with its hash. If it has a private key, its path is added to the keys."""
    if found.kind != "file":
        return found
    digest = hashlib.sha256()
    size, begin = 0, b""
    for block in read_steadily(root, found.path):
        digest.update(block)
        size += len(block)
        if len(begin) < SEARCHED:
            begin += block
    if is_private_key(begin[:SEARCHED]):
        keys.append(found.path)
    return replace(found, size=size, value=digest.hexdigest())


def read_steadily(root: Path, path: str) -> Iterator[bytes]:
    """The bytes of the file `path` of the tree at `root`. Raises MntError if it is written to meanwhile."""
    try:
        descriptor = open_inside(root, path)
        with open(descriptor, "rb", buffering=0) as file:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise changed(path)
            read = 0
            while block := file.read(_BLOCK):
                read += len(block)
                if read > before.st_size:  # whoever lets it grow could do so for ever
                    raise changed(path)
                yield block
            after = os.fstat(descriptor)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):  # it, or a directory above it, is a link now
            raise changed(path) from None
        raise MntError(
            f"{printable(path)}: {strerror(error)}", fix="make it readable, or list it in .mntignore"
        ) from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or read != after.st_size:
        raise changed(path)


def changed(path: str) -> MntError:
    return MntError(
        f"{printable(path)} changed while it was read",
        fix="push again when no process writes to it, or list it in .mntignore",
    )
