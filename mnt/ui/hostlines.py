"""Live output of several hosts, each line with its host."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import TextIO

import click

from mnt.ui.console import clean, colours

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow")


class HostLines:
    """Writes `node1 | text` lines; whole lines only, so that hosts never mix within a line.

    On a terminal the prefix is coloured and escapes from hosts are taken out; into a file or a pipe the bytes
    of the line go as they came.

    Args:
        hosts: all hosts that may speak; the widest name sets the prefix's width.
        stream: a text stream, `sys.stdout` if None.
        prefix: False leaves the host off (there is only one).
    """

    def __init__(self, hosts: Iterable[str], stream: TextIO | None = None, *, prefix: bool = True) -> None:
        names = list(hosts)
        self._stream = sys.stdout if stream is None else stream
        self._coloured = colours(self._stream)
        width = max((len(name) for name in names), default=0)
        self._prefix = {
            name: self._paint(f"{name:<{width}} | ", _COLOURS[i % len(_COLOURS)]) if prefix else ""
            for i, name in enumerate(names)
        }
        self._partial: dict[str, str] = {}
        self._lock = threading.Lock()

    def _paint(self, text: str, colour: str) -> str:
        return click.style(text, fg=colour) if self._coloured else text

    def feed(self, host: str, text: str) -> None:
        """Take a piece of a host's output; its complete lines are written, the rest waits.

        `text` may hold surrogate escapes (bytes that were not UTF-8): they leave as the same bytes.
        """
        with self._lock:
            *lines, rest = (self._partial.get(host, "") + text).split("\n")
            self._partial[host] = rest
            self._write(host, lines)

    def close(self) -> None:
        """Write what is left without a newline."""
        with self._lock:
            for host, rest in self._partial.items():
                if rest:
                    self._write(host, [rest])
            self._partial.clear()

    def _write(self, host: str, lines: list[str]) -> None:
        if not lines:
            return
        prefix = self._prefix.get(host, f"{host} | ")
        if self._coloured:
            lines = [clean(line) for line in lines]
        data = "".join(f"{prefix}{line}\n" for line in lines).encode("utf-8", "surrogateescape")
        binary = getattr(self._stream, "buffer", None)
        if binary is None:
            self._stream.write(data.decode("utf-8", "replace"))
        else:
            self._stream.flush()
            binary.write(data)
        self._stream.flush()
