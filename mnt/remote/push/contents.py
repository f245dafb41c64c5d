"""What is in a release, and which of it a push did not bring. Runs on a host: Python 3.8, standard library.

Foreign is a file that the manifest does not name, or names with other bytes: what a job has written there.
Python's byte code is not counted, because Python makes it again; neither are the links to shared/.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Any, Iterator, NamedTuple, Sequence

from mnt.remote.common.levels import enter
from mnt.remote.common.mounts import mount_id
from mnt.remote.common.owners import judge_mount
from mnt.remote.common.refusal import Refused
from mnt.remote.push.entries import Entry, same_bytes, shown

_SHOWN = 3  # names of foreign files that are told
_LONGEST = 100  # characters of such a name
BYTE_CODE = re.compile(rb"(?:\A|/)__pycache__/[^/]*\.pyc(?:\.[0-9]+)?\Z")  # Python writes x.pyc.NUMBER first


class Contents(NamedTuple):
    """The files in a release; what cannot be read counts as a foreign file of 0 bytes."""

    files: int
    bytes: int
    foreign_files: int
    foreign_bytes: int
    names: list[str]  # the first of the foreign files, for people

    def foreign(self) -> dict[str, Any]:
        """`{"files", "bytes", "names"}` of the foreign files."""
        return {"files": self.foreign_files, "bytes": self.foreign_bytes, "names": self.names}


def look_into(top: bytes, entries: Sequence[Entry], shared: bytes, *, made: float | None = None) -> Contents:
    """Compare the tree at `top` with the entries of its manifest.

    Args:
        entries: empty if there is no manifest: then every file is foreign.
        shared: the directory to which the kept names are links.
        made: when the tree was complete, as st_ctime: a file that has not changed since is not read. None:
            all files are read, which finds a change even if a clock was wrong.
    """
    named = {entry.path: entry for entry in entries}
    files = size = 0
    foreign: list[tuple[bytes, int]] = []
    for path, found in files_of(top):
        if found is None:
            foreign.append((path, 0))
            continue
        if stat.S_ISLNK(found.st_mode) and leads_to_shared(top, path, shared):
            continue
        held = found.st_size if stat.S_ISREG(found.st_mode) else 0
        files += 1
        size += held
        if not BYTE_CODE.search(path) and not _as_sent(top, named.get(path), found, made):
            foreign.append((path, held))
    names = [shown(path)[:_LONGEST] for path, _ in sorted(foreign)[:_SHOWN]]
    return Contents(files, size, len(foreign), sum(held for _, held in foreign), names)


def files_of(top: bytes) -> Iterator[tuple[bytes, os.stat_result | None]]:
    """Every path below `top` that is no directory, with its status.

    None: it cannot be read, or another user has mounted a file system there, which might never answer.
    """
    pending = [b""]
    while pending:
        inside = pending.pop()
        try:
            names = os.listdir(os.path.join(top, inside))
            directory = os.open(os.path.join(top, inside), os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:  # a job has just removed it
            continue
        except OSError:
            yield inside or b".", None
            continue
        try:
            mount = mount_id(directory)
            for name in names:
                path = inside + name
                try:
                    found = _status(name, directory, mount, os.path.join(top, path))
                except FileNotFoundError:
                    continue
                except (OSError, Refused):
                    yield path, None
                    continue
                if stat.S_ISDIR(found.st_mode):
                    pending.append(path + b"/")
                else:
                    yield path, found
        finally:
            os.close(directory)


def _status(name: bytes, directory: int, mount: str, path: bytes) -> os.stat_result:
    """Of what has a name in a directory, also of a link. Raises OSError, and Refused for a mount."""
    descriptor, _ = enter(name, directory, mount, shown(path), judge_mount)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def leads_to_shared(top: bytes, path: bytes, shared: bytes) -> bool:
    """Whether a link is one of those that `Releases.link_shared` makes."""
    place = os.path.join(top, path)
    try:
        return os.readlink(place) == os.path.relpath(os.path.join(shared, path), os.path.dirname(place))
    except OSError:
        return False


def _as_sent(top: bytes, entry: Entry | None, found: os.stat_result, made: float | None) -> bool:
    """Whether a file has the kind and the bytes of its entry; its mode holds nothing that could be lost."""
    if entry is None:
        return False
    try:
        if stat.S_ISLNK(found.st_mode):
            return entry.kind == "link" and os.readlink(os.path.join(top, entry.path)) == entry.target
        if not stat.S_ISREG(found.st_mode) or entry.kind != "file" or found.st_size != entry.size:
            return False
        return (made is not None and found.st_ctime < made) or same_bytes(top, entry)
    except OSError:
        return False
