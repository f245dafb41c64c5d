"""One-line messages and JSON documents."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any, TextIO

import click

from mnt.errors import MntError

# CSI, OSC (to BEL or ST), other two-byte escapes, and the control characters that move a cursor.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def clean(text: str) -> str:
    """Text from a host made harmless for a terminal: no escapes, no controls but tab and newline."""
    return _ESCAPES.sub("", text)


def colours(stream: TextIO) -> bool:
    """Whether to colour what goes to `stream`: a terminal, and NO_COLOR (no-color.org) not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _say(text: str, stream: TextIO, **style: Any) -> None:
    if colours(stream):
        text = click.style(text, **style)
    stream.write(text + "\n")
    stream.flush()


def plain(text: str, colour: str | None = None) -> None:
    """A line of the result, on stdout; `colour` is one of click's names, seen on a terminal only."""
    _say(text, sys.stdout, fg=colour)


def document(value: Any) -> None:
    """The result as one JSON document, on stdout."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
    sys.stdout.flush()


def info(text: str) -> None:
    """Progress, for people: stderr."""
    _say(text, sys.stderr)


def note(text: str) -> None:
    """An aside, dimmed: stderr."""
    _say(text, sys.stderr, dim=True)


def success(text: str) -> None:
    _say(text, sys.stderr, fg="green")


def failure(text: str) -> None:
    _say(clean(text), sys.stderr, fg="red")


def warn(text: str) -> None:
    _say(f"warning: {text}", sys.stderr, fg="yellow")


def error(problem: MntError) -> None:
    """The error and its way out, on stderr."""
    _say(f"mnt: {clean(problem.message)}", sys.stderr, fg="red")
    if problem.fix:
        _say(f"  fix: {clean(problem.fix)}", sys.stderr)
