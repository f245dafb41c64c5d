"""Write the tree of a release according to its manifest: what this host has, and the rest from a stream.

The stream only supplies bytes: a member that is not the next file that is lacking is refused, so that nothing
is written that the manifest does not name. Runs on a host: Python 3.8, standard library.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tarfile
from typing import IO, Iterator, Mapping, Sequence, cast

from mnt.remote.common.files import write_all
from mnt.remote.common.refusal import Refused
from mnt.remote.push.entries import Entry, differs, shown
from mnt.remote.push.reuse import open_new, take_from

_BLOCK = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Window:
    """The next `size` bytes of a stream, as a stream. Raises EOFError if it ends early."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream = stream
        self._left = size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._stream.read(wanted) if wanted else b""
        if len(data) < wanted:
            raise EOFError
        self._left -= len(data)
        return data

    def drain(self) -> None:
        """Read the rest and discard it."""
        while self.read(_BLOCK):
            pass


def check_space(directory: bytes, entries: Sequence[Entry]) -> None:
    """Raises Refused if the file system of `directory` lacks the blocks or the inodes for these entries."""
    system = os.statvfs(directory)
    block = system.f_frsize
    needed = sum(-(-entry.size // block) * block for entry in entries if entry.kind == "file") + block * sum(
        entry.kind == "dir" for entry in entries
    )
    free = system.f_bavail * block
    if needed > free:
        raise Refused(
            f"no space: {shown(directory)} needs {_size(needed)}, {_size(free)} are free",
            "free space there, or push less: .mntignore",
        )
    if system.f_files and len(entries) > system.f_favail:
        raise Refused(
            f"no inodes: {shown(directory)} needs {len(entries)}, {system.f_favail} are free",
            "remove small files there, or push fewer: .mntignore",
        )


def _size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"


def assemble(top: bytes, entries: Sequence[Entry], places: Mapping[str, Sequence[bytes]]) -> list[int]:
    """Make a tree of what this host has; its directories are private and writable until `set_modes`.

    Args:
        places: SHA-256 (hex) -> the files here that should have these bytes.

    Returns the indexes of the files that are lacking, each content once. Raises Refused if the disk is full.
    """
    lacking: dict[str, int] = {}
    for index, entry in enumerate(entries):
        path = os.path.join(top, entry.path) if entry.path else top
        with _full_is_refused(entry):
            if entry.kind == "dir":
                os.mkdir(path, 0o700)
            elif entry.kind == "link":
                os.symlink(entry.target, path)
            elif entry.size == 0:
                _write_file(path, entry, None)
            elif not any(take_from(place, path, entry) for place in places.get(entry.value, ())):
                lacking.setdefault(entry.value, index)
    return sorted(lacking.values())


def complete(top: bytes, entries: Sequence[Entry], lacking: Sequence[int], stream: Window) -> None:
    """Write the lacking files from a tar stream, then those with the same bytes from them.

    Raises Refused if the stream contains anything else, or if the disk is full; EOFError if it ends early.
    """
    arrived: dict[str, bytes] = {}
    if lacking:
        for entry, content in _from_tar([entries[index] for index in lacking], stream):
            arrived[entry.value] = path = os.path.join(top, entry.path)
            with _full_is_refused(entry):
                _write_file(path, entry, content)
    for entry in entries:
        path = os.path.join(top, entry.path)
        if entry.kind == "file" and entry.value in arrived and not os.path.lexists(path):
            with _full_is_refused(entry):
                take_from(arrived[entry.value], path, entry)


def _from_tar(entries: Sequence[Entry], stream: Window) -> Iterator[tuple[Entry, IO[bytes]]]:
    """The files of a tar stream, which must be exactly these, in their order."""
    try:
        with tarfile.open(
            fileobj=cast(IO[bytes], stream), mode="r|", encoding="utf-8", errors="surrogateescape"
        ) as archive:
            for entry in entries:
                yield entry, cast(IO[bytes], archive.extractfile(_expect(archive.next(), entry)))
                archive.members = []  # type: ignore[attr-defined]  # otherwise it keeps all members
            if archive.next() is not None:
                raise Refused("the stream contains more than what is lacking")
    except tarfile.TarError as error:
        raise Refused(f"the stream is damaged: {error}") from error


def _expect(member: tarfile.TarInfo | None, entry: Entry) -> tarfile.TarInfo:
    if member is None:
        raise Refused(f"the stream lacks {shown(entry.path)!r}")
    name = member.name.encode("utf-8", "surrogateescape")
    if name != entry.path or member.type != tarfile.REGTYPE or member.size != entry.size:
        raise Refused(
            f"the stream contains {shown(name)!r} (type {shown(member.type)}, {member.size} bytes) where the "
            f"manifest has {shown(entry.path)!r} ({entry.kind}, {entry.size} bytes)"
        )
    return member


@contextlib.contextmanager
def _full_is_refused(entry: Entry) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise Refused(
            f"no space: the disk, or your quota, was full at {shown(entry.path)}",
            "free space there, or push less: .mntignore",
        ) from error


def _write_file(path: bytes, entry: Entry, content: IO[bytes] | None) -> None:
    """Write a new file; None: an empty one. Raises Refused if it has other bytes than the manifest names."""
    digest = hashlib.sha256()
    with open_new(path) as file:
        for block in iter(lambda: content.read(_BLOCK) if content else b"", b""):
            write_all(file, block)
            digest.update(block)
        os.fchmod(file.fileno(), entry.mode)
    if digest.hexdigest() != entry.value:
        raise Refused(f"{shown(entry.path)} arrived with bytes that differ from the manifest")


def set_modes(top: bytes, entries: Sequence[Entry]) -> None:
    """Give the directories their modes, the deepest first: a mode may make those below inaccessible."""
    for entry in reversed(entries):
        if entry.kind == "dir":
            os.chmod(os.path.join(top, entry.path), entry.mode)


def check_tree(top: bytes, entries: Sequence[Entry]) -> None:
    """Raises Refused unless the tree at `top` has exactly the entries; their bytes were checked before."""
    extra = set(_listing(top)) - {entry.path for entry in entries}
    problems = [f"{shown(path)} is not in the manifest" for path in sorted(extra)]
    for entry in entries:
        how = differs(top, entry)
        if how is not None:
            problems.append(f"{shown(entry.path) or '.'} {how}")
    if problems:
        raise Refused(
            "the written tree is not the one that was sent: " + "; ".join(problems[:3]),
            "put the workdir on a file system that keeps names and modes",
        )


def _listing(top: bytes) -> list[bytes]:
    """Every path below `top`, and "" for `top` itself."""
    found = [b""]
    for directory, directories, files in os.walk(top):
        found += [os.path.relpath(os.path.join(directory, name), top) for name in directories + files]
    return found
