"""Live output of several hosts, each line with the name of its host."""

from __future__ import annotations

import itertools
import shutil
import sys
import threading
from collections.abc import Iterable
from typing import TextIO

import click
from rich.cells import cell_len

from mnt.ui.console import ERASE_LINE, clean, colours, put

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow")
_LONGEST = 1 << 18  # bytes of a line that are buffered; a longer line is shown in pieces


class HostLines:
    """Writes lines like `node1 | text`. Whole lines only, so the output of hosts is never mixed in a line.

    On a terminal the prefix is coloured and escapes from hosts are removed. Into a file or pipe, the bytes of
    a line are written unchanged. The output of a single host without a prefix is written immediately and
    unchanged.

    Args:
        hosts: all hosts that may have output; the longest name sets the width of the prefix.
        stream: a text stream, `sys.stdout` if None.
        prefix: False: print no names of hosts.
    """

    def __init__(self, hosts: Iterable[str], stream: TextIO | None = None, *, prefix: bool = True) -> None:
        names = list(hosts)
        self._stream = sys.stdout if stream is None else stream
        self._coloured = colours(self._stream)
        self._terminal = self._stream.isatty()
        self._untouched = not prefix and len(names) == 1 and not self._terminal
        width = max((len(name) for name in names), default=0)
        self._prefix = {
            name: self._paint(f"{name:<{width}} | ", _COLOURS[i % len(_COLOURS)]).encode() if prefix else b""
            for i, name in enumerate(names)
        }
        self._partial: dict[str, bytearray] = {}
        self._lock = threading.Lock()
        self._has_live = False

    def _paint(self, text: str, colour: str) -> str:
        return click.style(text, fg=colour) if self._coloured else text

    def feed(self, host: str, data: str | bytes) -> None:
        """Add a piece of a host's output. Complete lines are written, the rest is buffered.

        Text may contain surrogate escapes (bytes that were not UTF-8); they are written as the same bytes.
        """
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogateescape")
        with self._lock:
            if self._untouched:
                put(self._stream, data)
                return
            lines, newline, rest = data.rpartition(b"\n")
            partial = self._partial.setdefault(host, bytearray())
            if newline:
                self._write(host, (bytes(partial) + lines).split(b"\n"))
                partial.clear()
            partial += rest
            if len(partial) > _LONGEST:
                self._write(host, [bytes(partial)])
                partial.clear()

    def live(self, host: str, text: str) -> None:
        """Show a text in the last line of a terminal, until anything else is written; nothing elsewhere."""
        if not self._terminal:
            return
        with self._lock:
            prefix = self._prefix.get(host, b"")
            width = shutil.get_terminal_size().columns - 1 - len(click.unstyle(prefix.decode()))
            shown = _cut(clean(text).replace("\t", " "), max(width, 0))
            put(self._stream, b"%b%b%b" % (ERASE_LINE, prefix, shown.encode("utf-8", "replace")))
            self._has_live = True

    def close(self) -> None:
        """Write the incomplete last lines."""
        with self._lock:
            self._erase_live()
            for host, rest in self._partial.items():
                if rest:
                    self._write(host, [bytes(rest)])
            self._partial.clear()

    def _write(self, host: str, lines: list[bytes]) -> None:
        prefix = self._prefix.get(host, f"{host} | ".encode())
        self._erase_live()
        if self._terminal:
            lines = [clean(line.decode("utf-8", "replace")).encode() for line in lines]
        put(self._stream, b"".join(b"%b%b\n" % (prefix, line) for line in lines))

    def _erase_live(self) -> None:
        if self._has_live:
            put(self._stream, ERASE_LINE)
            self._has_live = False


def _cut(text: str, columns: int) -> str:
    """The beginning of a text that is at most so many columns wide: a second row would have no host's name.

    A character counts as one column at least: what makes the one before it wider (U+FE0F) has none itself.
    """
    text = text[:columns]
    ends = itertools.accumulate(max(1, cell_len(char)) for char in text)
    return text[: sum(end <= columns for end in ends)]


def block(pieces: Iterable[bytes], stream: TextIO | None = None) -> None:
    """Write output unchanged, except: without escapes on a terminal, and with a newline at its end.

    Args:
        stream: a text stream, `sys.stdout` if None.
    """
    lines = HostLines(("", "nobody"), stream, prefix=False)
    for piece in pieces:
        lines.feed("", piece)
    lines.close()
