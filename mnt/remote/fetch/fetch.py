"""Look for the files that a user wants back, list them, and send them. Called through `mnt.tasks.fetch`.

Arguments: `action` is "survey", "list" or "send"; the first two get what `mnt.tasks.fetch.Wanted` has, "send"
gets the `tops` that "list" answered. Runs on a host: Python 3.8, standard library.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from typing import IO, Any, Callable, Dict, Sequence

from mnt.remote.common.files import decode
from mnt.remote.common.forms import FETCH_FILES, FETCH_LIST, held
from mnt.remote.common.refusal import Refused
from mnt.remote.fetch.parts import Part, parts_of
from mnt.remote.fetch.send import send, time_of

Emit = Callable[[Dict[str, Any]], None]
_AT_ONCE = 100  # entries in a frame
_LARGE = 1 << 16  # bytes of JSON after which a frame is sent; an entry has 50,000 at most

_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFBLK: "device",
    stat.S_IFCHR: "device",
}


def main(args: dict[str, Any], emit: Emit, stdin: IO[bytes]) -> dict[str, Any]:
    """Carry out one action."""
    try:
        if args["action"] == "send":
            return send(args["tops"], emit, stdin)
        parts = parts_of(args)
        if args["action"] == "survey":
            return {"parts": [_survey(part) for part in parts]}
        return _list(parts, emit)
    except Refused as refusal:
        return {"refused": refusal.document()}


def _survey(part: Part) -> dict[str, Any]:
    """How much there is. The digest is the same on hosts that see the same files, and only there.

    It is a sum over the files, because they may be listed in any order. An inode and a time of change belong
    to one file of one file system.
    """
    files = links = size = others = later = total = 0
    for path, found in part.files():
        if found is None:
            others += 1
            identity = os.urandom(16)
        elif part.is_later(found):
            later += 1
            continue
        else:
            is_file, is_link = stat.S_ISREG(found.st_mode), stat.S_ISLNK(found.st_mode)
            is_other = not is_file and not is_link
            files, links, others = files + (not is_other), links + is_link, others + is_other
            size += found.st_size if is_file else 0
            identity = b"%d %d %d " % (found.st_ino, found.st_ctime_ns, found.st_size) + path
        total += int.from_bytes(hashlib.sha256(identity).digest(), "big")
    return {
        "files": files,
        "links": links,
        "bytes": size,
        "others": others,
        "later": later,
        "digest": f"{total % (1 << 256):064x}",
        "problem": part.problem,
        "absent": part.absent,
    }


def _list(parts: Sequence[Part], emit: Emit) -> dict[str, Any]:
    """Send the entries (see `mnt.tasks.fetch.Entry`) of all parts. Raises Refused if there are too many."""
    rows: list[list[Any]] = []
    count = size = waiting = 0
    for number, part in enumerate(parts):
        for path, found in part.files():
            if found is not None and part.is_later(found):
                continue
            row = _row(number, part, path, found)
            count, size, waiting = (
                count + 1,
                size + held(row[1]) + held(row[-1]),
                waiting + len(json.dumps(row)),
            )
            if count > FETCH_FILES or size > FETCH_LIST:
                raise Refused(
                    f"more than {FETCH_FILES:,} files, or very long names",
                    "name directories with fewer files, or pack them first: mnt run -- tar ..",
                )
            rows.append(row)
            if len(rows) == _AT_ONCE or waiting > _LARGE:
                emit({"entries": rows})
                rows, waiting = [], 0
    if rows:
        emit({"entries": rows})
    return {"tops": [decode(part.top) for part in parts]}


def _row(number: int, part: Part, path: bytes, found: os.stat_result | None) -> list[Any]:
    name = decode(path)
    kind = "unreadable" if found is None else _KINDS.get(stat.S_IFMT(found.st_mode), "device")
    target = None
    if kind == "link":
        try:
            target = decode(os.readlink(os.path.join(part.top, path) if path else part.top))
        except OSError:
            kind = "unreadable"
    if found is None:
        return [number, name, kind, 0, 0, 0, target]
    size = found.st_size if kind == "file" else 0
    return [number, name, kind, size, time_of(found), stat.S_IMODE(found.st_mode), target]
