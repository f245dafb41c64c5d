"""The head's side of starting a program on a host: the bytes that are sent, and the frames that come back.

On the host `boot.sh` finds a Python, then `boot.py` runs the program. Both are sent on standard input: the
login shell may be any shell, and gets nothing but COMMAND.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from mnt.remote.common.files import parse_json, whole_number
from mnt.tasks.bounds import MOST, SHORT, Bound, problem_of

# sh, bash, zsh, ksh, fish and tcsh pass this on unchanged: no backslash, `!` or newline in the quotes.
COMMAND = "exec sh -c 'IFS= read -r line; eval \"$line\"'"

# Also valid Python 2: an old interpreter must be able to report that it is old. Standard input moves to
# another descriptor, so that no process that the program starts can read from it.
_STUB = """\
import os, sys
if sys.version_info < (3, 8):
    sys.exit(97)
if sys.path[0] == "":
    del sys.path[0]
import json, zlib
feed = open(os.dup(0), "rb", 65536)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
modules = json.loads(zlib.decompress(feed.read(int(feed.readline() or sys.exit(98)))))
exec(compile(modules.pop(0)[1], "mnt/remote/boot/boot.py", "exec"))
serve(modules, feed, sys.argv[1], sys.argv[2:])
"""


def new_mark() -> str:
    """The mark of the frames of one run."""
    import secrets

    return "mnt-" + secrets.token_hex(16)


@cache
def _text(name: str) -> str:
    return resources.files("mnt.remote").joinpath(name).read_text(encoding="utf-8")


@cache
def shell_line(*names: str) -> str:
    """Shell scripts of mnt.remote as the single line that COMMAND reads first: no comments, no newlines."""
    lines = (line.strip() for name in names for line in _text(name).splitlines())
    return " ".join(line for line in lines if line and not line.startswith("#"))


def opening(
    mark: str,
    python: Sequence[str],
    *,
    why: str = "",
    stale: int | None = None,
    owner: str | None = None,
    group: str | None = None,
) -> bytes:
    """What COMMAND reads before the request.

    An interpreter that another user of the host could exchange is not run.

    Args:
        mark: see `new_mark`.
        python: words of the configured interpreter; empty: only the usual places are tried.
        why: why the configured interpreter is not used.
        stale: process group of an earlier run that hangs, to be killed first.
        owner, group: a user, and a group whose members, may be able to exchange it; ANYBODY: all users may.

    Raises ValueError if a word of `python` is empty or contains a newline or NUL.
    """
    for word in python:
        if "\n" in word or "\0" in word or not word:
            raise ValueError(f"not a word of an interpreter's command line: {word!r}")
    lines = [
        shell_line("boot/judge.sh", "boot/boot.sh"),
        mark,
        "" if stale is None else str(stale),
        why,
        owner or "",
        group or "",
        f"exec({_STUB!r})",
        str(len(python)),
        *python,
    ]
    return "".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape")


def pack(modules: Sequence[tuple[str, str]]) -> bytes:
    """A program as the stub reads it, after boot.py: the same for every host.

    Args:
        modules: (full name, source), each after those that it imports.
    """
    files = [("mnt.remote.boot.boot", _text("boot/boot.py")), *modules]
    return _block(zlib.compress(json.dumps(files).encode()))


def request(mark: str, name: str, args: dict[str, Any], limit: int = MOST.size) -> bytes:
    """The request that boot.py reads after the packed program; the program's own stream follows.

    Args:
        mark: the same as in the opening.
        name: the program; `job.jobctl` is mnt/remote/job/jobctl.py.
        args: JSON-serialisable arguments of its `main`.
        limit: bytes of the largest frame that it may send.

    Raises TypeError or ValueError if `args` is not JSON.
    """
    document = {"mark": mark, "limit": limit, "error_limit": SHORT.size, "name": name, "args": args}
    return _block(json.dumps(document, allow_nan=False).encode())


def _block(data: bytes) -> bytes:
    return b"%d\n%b" % (len(data), data)


END_OF_STREAM = b"%08x" % 0
PIECE = 1 << 18  # bytes of the largest piece of the stream


def piece(data: bytes) -> bytes:
    """One piece of the program's stream; `data` is not empty."""
    return b"%08x" % len(data) + data


@dataclass(frozen=True)
class Frame:
    """A message from the host.

    `kind` is one of `sh`, `tried`, `fact`, `none` (from boot.sh, `value` is text) or `hello`, `frame`,
    `answer`, `error` (from boot.py, `value` is the decoded JSON).
    """

    kind: str
    value: Any


class BadFrame(ValueError):
    """Data with the mark that is not a frame: cut short, too large, or not JSON."""


_TEXT_KINDS = frozenset({"sh", "tried", "fact", "none"})
_JSON_KINDS = frozenset({"hello", "frame", "answer", "error"})
_SHORT_KINDS = frozenset({"hello", "error"})
_LINE_LIMIT = 65536
_REMARKS_LIMIT = 32768  # bytes of all frames of boot.sh, which sends about 1000
_NOISE_KEPT = 4096


class FrameReader:
    """Finds frames in a standard output that may contain other text before and between them.

    It keeps at most one frame and one line, whatever the output is. Text frames are bounded in total.
    """

    def __init__(self, mark: str, bound: Bound = MOST) -> None:
        self._mark = mark.encode() + b" "
        self._bound = bound
        self._remarks = 0  # bytes of text frames
        self._total = 0  # bytes of JSON
        self._buffer = bytearray()
        self._parts = bytearray()
        self._noise = bytearray()
        self._echoed = False  # the opening comes back, in which the mark is a line

    @property
    def noise(self) -> str:
        """The end of the text outside frames; not what only sends our own input back, which may be secret."""
        return "" if self._echoed else (self._noise + self._buffer)[-_NOISE_KEPT:].decode(errors="replace")

    @property
    def skipped(self) -> str:
        """The end of the text outside frames, up to the last frame."""
        return self._noise.decode(errors="replace")

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take a piece of output, and return the frames that it completes. Raises BadFrame."""
        self._buffer += data
        self._echoed = self._echoed or self._mark.rstrip() + b"\n" in self._buffer
        while self._skip_to_mark():
            end = self._buffer.find(b"\n")
            if end < 0:
                if len(self._buffer) > _LINE_LIMIT:
                    raise BadFrame("a frame's header does not end")
                return
            header = bytes(self._buffer[len(self._mark) : end]).decode(errors="replace")
            kind, _, rest = header.partition(" ")
            if kind in _TEXT_KINDS:
                del self._buffer[: end + 1]
                self._remarks += end
                if self._remarks > _REMARKS_LIMIT:
                    raise BadFrame("too many remarks of a shell")
                yield Frame(kind, rest)
            elif kind in _JSON_KINDS:
                size, more = self._sizes(rest)
                if len(self._buffer) < end + 1 + size:
                    return
                self._parts += self._buffer[end + 1 : end + 1 + size]
                del self._buffer[: end + 1 + size]
                bound = SHORT if kind in _SHORT_KINDS else self._bound
                self._total += size
                if len(self._parts) > bound.size:
                    raise BadFrame(f"a frame of more than {bound.size} bytes")
                if self._bound.total is not None and self._total > self._bound.total:
                    raise BadFrame(f"more than {self._bound.total} bytes in all")
                if not more:
                    yield Frame(kind, self._decode(bound))
            else:
                raise BadFrame(f"a frame of no known kind: {kind[:40]!r}")

    def _skip_to_mark(self) -> bool:
        start = self._buffer.find(self._mark)
        found = start >= 0
        if not found:  # the buffer may end with the beginning of a mark
            start = max(0, len(self._buffer) - len(self._mark) + 1)
        if start:
            self._noise += self._buffer[:start]
            del self._noise[:-_NOISE_KEPT]
            del self._buffer[:start]
        return found

    @staticmethod
    def _sizes(text: str) -> tuple[int, bool]:
        digits, _, more = text.partition(" ")
        size = whole_number(digits)
        if size is None or size > _LINE_LIMIT or more not in ("0", "1"):
            raise BadFrame(f"a frame of no known size: {text[:40]!r}")
        return size, more == "1"

    def _decode(self, bound: Bound) -> Any:
        data = bytes(self._parts)
        self._parts.clear()
        with _DECODING:
            problem = problem_of(data, bound)
            if problem is not None:
                raise BadFrame(problem)
            try:
                return parse_json(data)
            except UnicodeDecodeError as error:
                raise BadFrame(f"no UTF-8: {error.reason} at byte {error.start}") from None
            except ValueError as error:
                raise BadFrame(str(error)) from None


# One frame at a time: what a frame needs only while it is parsed is then needed once, not for each host.
_DECODING = threading.Lock()
