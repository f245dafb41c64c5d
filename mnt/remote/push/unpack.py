"""Write the tree of a release according to its manifest, from a tar stream or from another release here.

The stream only supplies the bytes: a member that is not the next entry of the manifest is refused, so that
nothing is written that the manifest does not name. Runs on a host: Python 3.8, standard library.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tarfile
from typing import IO, Iterator, Optional, Sequence, Tuple, cast

from mnt.remote.common.refusal import Refused
from mnt.remote.push.entries import Entry, differs, shown

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


Contents = Iterator[Tuple[Entry, Optional[IO[bytes]]]]  # each entry, and a file's bytes as something to read


def from_release(entries: Sequence[Entry], top: bytes) -> Contents:
    """The contents of a release that this host already has."""
    for entry in entries:
        if entry.kind == "file":
            with open(os.path.join(top, entry.path), "rb") as file:
                yield entry, file
        else:
            yield entry, None


def from_tar(entries: Sequence[Entry], stream: Window) -> Contents:
    """The contents of a tar stream, which must have the entries, except the top directory, in their order.

    Raises Refused if it contains anything else, EOFError if it ends early.
    """
    try:
        with tarfile.open(
            fileobj=cast(IO[bytes], stream), mode="r|", encoding="utf-8", errors="surrogateescape"
        ) as archive:
            for entry in entries:
                if entry.path == b"":
                    yield entry, None
                    continue
                member = _expect(archive.next(), entry)
                yield entry, archive.extractfile(member) if entry.kind == "file" else None
                archive.members = []  # type: ignore[attr-defined]  # otherwise it keeps all members
            if archive.next() is not None:
                raise Refused("the stream contains more than the manifest names")
    except tarfile.TarError as error:
        raise Refused(f"the stream is damaged: {error}") from error


TAR_TYPES = {"dir": tarfile.DIRTYPE, "file": tarfile.REGTYPE, "link": tarfile.SYMTYPE}


def _expect(member: tarfile.TarInfo | None, entry: Entry) -> tarfile.TarInfo:
    if member is None:
        raise Refused(f"the stream lacks {shown(entry.path)!r}")
    name = member.name.encode("utf-8", "surrogateescape")
    if name != entry.path or member.type != TAR_TYPES[entry.kind] or member.size != entry.size:
        raise Refused(
            f"the stream contains {shown(name)!r} (type {shown(member.type)}, {member.size} bytes) where the "
            f"manifest has {shown(entry.path)!r} ({entry.kind}, {entry.size} bytes)"
        )
    return member


def write_tree(top: bytes, contents: Contents) -> None:
    """Make a tree; its directories are private and writable until `set_modes`.

    Raises Refused if a file's bytes differ from the hash in the manifest, or if the disk is full.
    """
    for entry, content in contents:
        path = os.path.join(top, entry.path) if entry.path else top
        try:
            if entry.kind == "dir":
                os.mkdir(path, 0o700)
            elif entry.kind == "link":
                os.symlink(entry.target, path)
            else:
                _write_file(path, entry, cast(IO[bytes], content))
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise Refused(
                f"no space: the disk, or your quota, was full at {shown(entry.path)}",
                "free space there, or push less: .mntignore",
            ) from error


def _write_file(path: bytes, entry: Entry, content: IO[bytes]) -> None:
    digest = hashlib.sha256()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb", buffering=0) as file:
        for block in iter(lambda: content.read(_BLOCK), b""):
            view = memoryview(block)
            while view:
                view = view[file.write(view) :]
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
    """Raises Refused unless the tree at `top` has exactly the entries; `write_tree` has checked the bytes."""
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
