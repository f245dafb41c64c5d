"""One-line messages, JSON documents, and the line with the current activity."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO

import click

from mnt.errors import MntError, OutputError
from mnt.remote.common.files import strerror

# CSI, OSC (to BEL or ST), other two-byte escapes, the control characters that move a cursor, and those that
# change the direction of text (Unicode 15, 23.2).
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u202a-\u202e\u2066-\u2069]"
)
# What alone makes a text act on a terminal; and colours, as a whole. Never a quote, so that a word that was
# quoted for a shell stays one word, whatever it contains.
_ACTS = re.compile(r"\x1b\[[0-9;:]*m|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_SURROGATES = re.compile("[\ud800-\udfff]")
ERASE_LINE = b"\r\x1b[K"


def clean(text: str) -> str:
    """Output of a program without escapes and control characters, except tab and newline.

    It may take away any other character with an escape, so it is not for text that is to be pasted.
    """
    return _ESCAPES.sub("", text)


def readable(text: str) -> str:
    """Text that can be encoded: U+FFFD for surrogates, such as those for the bytes of a host's file name."""
    return _SURROGATES.sub("\ufffd", text)


def colours(stream: TextIO) -> bool:
    """Whether to use colours on `stream`: it is a terminal, and NO_COLOR (no-color.org) is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def put(stream: TextIO, data: str | bytes) -> None:
    """Write and flush; bytes are written as they are. All output of `mnt` passes through here.

    Raises:
        BrokenPipeError: the program that read the output has ended.
        OutputError: it cannot be written. What is written to the stream from now on is discarded.
    """
    try:
        if isinstance(data, bytes) and hasattr(stream, "buffer"):
            stream.flush()
            stream.buffer.write(data)
        else:
            text = data if isinstance(data, str) else data.decode("utf-8", "replace")
            encoding = stream.encoding or "utf-8"
            stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard(stream)
        raise unwritable(stream, error) from error


def unwritable(stream: TextIO, error: OSError) -> OutputError:
    """The error for a stream that cannot be written."""
    name = {1: "standard output", 2: "standard error"}.get(_number(stream), "the output")
    closed = error.errno == errno.EBADF
    reason = "it is closed" if closed else strerror(error)
    fix = "open it; >/dev/null discards it" if closed else "write it to another place"
    return OutputError(f"{name}: the output cannot be written: {reason}", fix=fix)


def _number(stream: TextIO) -> int:
    try:
        return stream.fileno()
    except (OSError, ValueError):  # no file
        return -1


def discard(stream: TextIO) -> None:
    """Discard what is written to `stream` from now on, and what it has not written yet."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def one_line(text: str) -> str:
    """Text of any origin as one line that is safe to show.

    Without control characters and newlines: a host's text must not look like a line about another host. Of an
    escape, what is printable stays, apart from colours.
    """
    return _ACTS.sub("", text).replace("\n", " ")


def fix_text(text: str) -> str:
    """A fix as it is shown; marked if this makes another path of one in it, which could be anybody's."""
    if readable(one_line(text)) == text:
        return text
    return f"(not to be pasted: it has characters that cannot be shown) {text}"


def _write(text: str, stream: TextIO, **style: Any) -> None:
    text = one_line(text)
    put(stream, (click.style(text, **style) if colours(stream) else text) + "\n")


def plain(text: str, colour: str | None = None) -> None:
    """Print a line of the result to stdout; `colour` is one of click's names, used on a terminal only."""
    _write(text, sys.stdout, fg=colour)


def lines(text: str) -> None:
    """Print several lines of the result to stdout, each as `plain` does."""
    for line in text.split("\n"):
        plain(line)


def document(value: Any) -> None:
    """Print the result as one JSON document to stdout."""
    put(sys.stdout, _json(value) + "\n")


def _json(value: Any) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return text if text.isascii() else json.dumps(json.loads(readable(text)), indent=2)


def long_listing(value: dict[str, Any], name: str, items: Iterable[Any]) -> None:
    """Print `{**value, name: [*items]}` as `document` does, but only one item at a time is in memory."""
    put(sys.stdout, _json(value).removesuffix("\n}") + f",\n  {json.dumps(name)}: [")
    separator = ""
    for item in items:
        put(sys.stdout, f"{separator}\n    " + _json(item).replace("\n", "\n    "))  # no string has a newline
        separator = ","
    put(sys.stdout, "\n  ]\n}\n" if separator else "]\n}\n")


def long_document(value: dict[str, Any], name: str, members: Iterable[tuple[str, Any]]) -> None:
    """Print `{**value, name: {**members}}` as `document` does, but only one member at a time is in memory."""
    encoder = json.JSONEncoder(indent=2)
    put(sys.stdout, encoder.encode(value).removesuffix("\n}") + f",\n  {json.dumps(name)}: {{")
    separator = ""
    for key, member in members:
        put(sys.stdout, f"{separator}\n    {json.dumps(key)}: ")
        for piece in encoder.iterencode(member):
            put(sys.stdout, piece.replace("\n", "\n    "))  # no string has a newline in JSON
        separator = ","
    put(sys.stdout, "\n  }\n}\n" if separator else "}\n}\n")


def info(text: str) -> None:
    """Print progress for people to stderr."""
    _write(text, sys.stderr)


def note(text: str) -> None:
    """Print a less important line, dimmed, to stderr."""
    _write(text, sys.stderr, dim=True)


def success(text: str) -> None:
    _write(text, sys.stderr, fg="green")


def failure(text: str, fix: str | None = None) -> None:
    _write(text, sys.stderr, fg="red")
    if fix:
        _write(f"  fix: {fix_text(fix)}", sys.stderr, fg="red")


def warn(text: str) -> None:
    _write(f"warning: {text}", sys.stderr, fg="yellow")


def error(problem: MntError) -> None:
    """Print the error and its fix to stderr."""
    _write(f"mnt: {problem.message}", sys.stderr, fg="red")
    for detail in problem.details:
        _write(f"  {detail}", sys.stderr, fg="red")
    if problem.advice:
        _write(f"  fix: {fix_text(problem.advice)}", sys.stderr)


class StatusLine:
    """Shows changing texts in one line of stderr while the `with` block runs; on a terminal only."""

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.show("")

    def show(self, text: str) -> None:
        """Replace the shown text; `text` must not be wider than the terminal."""
        if sys.stderr.isatty():
            put(sys.stderr, ERASE_LINE.decode() + one_line(text))
