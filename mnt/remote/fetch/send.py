"""Send files to the head, from the byte on that it lacks. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
from typing import IO, Any, BinaryIO, Callable, Dict, Iterator, Sequence

from mnt.remote.common.files import encode, parse_json, strerror
from mnt.remote.common.forms import FETCH_PIECE
from mnt.remote.common.unlinked import open_regular_without_links

Emit = Callable[[Dict[str, Any]], None]
_GONE = "it was removed there meanwhile"
_REPLACED = "it, or a directory on the way to it, was replaced meanwhile"
_SHORTER = "it became shorter while it was read"
_NO_SIZE = "its size is not what it tells, as in /proc and /sys: mnt run -- cat FILE"
_BLOCK = 1 << 20
_LONGEST_LINE = 1 << 16  # bytes: a path has at most 4096, each up to 6 in JSON


def send(tops: Sequence[str], emit: Emit, stdin: IO[bytes]) -> dict[str, Any]:
    """Send the files that the lines of stdin name; see `mnt.tasks.fetch.receive` for both forms."""
    sent = 0
    for number, line in enumerate(iter(lambda: stdin.readline(_LONGEST_LINE), b"")):
        part, path, size, mtime, offset, digest = parse_json(line)
        place = os.path.join(encode(tops[part]), encode(path)) if path else encode(tops[part])
        try:
            with open_regular_without_links(place) as file:
                for frame in _frames(file, size, mtime, offset, digest):
                    emit({"file": number, **frame})
            sent += 1
        except FileNotFoundError:
            emit({"file": number, "problem": _GONE, "gone": True})
        except OSError as error:
            replaced = error.errno in (errno.ENOTDIR, errno.ELOOP)
            problem = _REPLACED if replaced else strerror(error)
            emit({"file": number, "problem": problem, "gone": False})
    return {"sent": sent}


def _frames(file: BinaryIO, size: int, mtime: int, offset: int, digest: str) -> Iterator[dict[str, Any]]:
    """The frames for one file: `size` bytes of it, without those that the head has. Raises OSError."""
    at = offset if offset and digest_of(file, offset) == digest else 0
    file.seek(at)
    while True:
        data = file.read(min(FETCH_PIECE, size - at))
        cut = len(data) < min(FETCH_PIECE, size - at)
        if cut:
            raise OSError(_SHORTER if os.fstat(file.fileno()).st_size < size else _NO_SIZE)
        end = at + len(data) == size
        if not size and file.read(1) and not os.fstat(file.fileno()).st_size:
            raise OSError(_NO_SIZE)
        frame = {"at": at, "data": base64.b64encode(data).decode(), "end": end}
        if end:
            now = os.fstat(file.fileno())
            frame["changed"] = (now.st_size, time_of(now)) != (size, mtime)
        yield frame
        if end:
            return
        at += len(data)


def time_of(found: os.stat_result) -> int:
    """The time of a file (ns), as the head knows it: of 64 bits, until the year 2262."""
    return max(-(2**63), min(found.st_mtime_ns, 2**63 - 1))


def digest_of(file: BinaryIO, size: int) -> str | None:
    """SHA-256 (hex) of the first `size` bytes; None: there are not so many. Raises OSError."""
    digest = hashlib.sha256()
    file.seek(0)
    while size:
        data = file.read(min(_BLOCK, size))
        if not data:
            return None
        digest.update(data)
        size -= len(data)
    return digest.hexdigest()
