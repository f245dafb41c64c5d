"""torchrun's own words about a failure, about 25 lines a node: in the log, but not shown above the verdict.

A rank's lines are known by the prefix that `mnt.launch.plan` gives them; what torchrun itself writes has none
(torch 2.13: `multiprocessing/api.py`, `errors/__init__.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

_RANK = "[rank"
_NOTICE = re.compile(r"[WE]\d{4} .* torch/distributed/elastic/(?:multiprocessing|agent)/.*\] ")
_BEGIN = "Traceback (most recent call last):"
_OF_AGENT = re.compile(r"torch\.distributed\.elastic\.\S*(?P<name>ChildFailedError|SignalException):")
_RULE = re.compile(r"=+$")
_RULES = 2  # at the beginning and the end of the summary that follows a ChildFailedError
_LONGEST = 200  # lines of a traceback that are held back
_LARGEST = 1 << 18  # characters of it
_LONGEST_LINE = 1 << 16  # characters
_LONGEST_HEADER = 500  # characters of a notice before its text


class WithoutBanner:
    """Passes on what the nodes print, except torchrun's words about a failure.

    Args:
        show: takes (host, text) as it arrives.
    """

    def __init__(self, show: Callable[[str, str], None]) -> None:
        self._show = show
        self._nodes: dict[str, _Node] = {}

    def feed(self, host: str, text: str) -> None:
        """Take the next piece of a node's output, and show what is no banner."""
        shown = self._nodes.setdefault(host, _Node()).feed(text)
        if shown:
            self._show(host, shown)

    def close(self) -> None:
        """Show what was held back."""
        for host, node in self._nodes.items():
            if rest := node.rest():
                self._show(host, rest)


class _Node:
    """The output of one node: pure."""

    def __init__(self) -> None:
        self._partial = ""  # the beginning of a line that may be torchrun's
        self._inside = False  # the beginning of this line has been shown
        self._held: list[str] = []  # a traceback without a prefix, up to now
        self._rules = 0  # that the summary still has

    def feed(self, text: str) -> str:
        """The part of the next piece that can be shown now."""
        *lines, rest = (self._partial + text).split("\n")
        shown = "".join([self._line(f"{line}\n") for line in lines])
        self._inside = bool(rest) and (self._inside or rest.startswith(_RANK) or len(rest) > _LONGEST_LINE)
        self._partial = "" if self._inside else rest
        return shown + rest if self._inside else shown

    def rest(self) -> str:
        """What is still held back."""
        rest, self._held, self._partial = "".join(self._held) + self._partial, [], ""
        return rest

    def _line(self, line: str) -> str:
        """What is shown because of a line, or of its end."""
        if self._inside or line.startswith(_RANK):
            self._inside = False
            return line
        text = line.rstrip("\r\n")
        if self._rules:
            self._rules -= _RULE.match(text) is not None
            return ""
        if self._held or text == _BEGIN:
            return self._of_traceback(line, text)
        return "" if _NOTICE.match(text, 0, _LONGEST_HEADER) else line

    def _of_traceback(self, line: str, text: str) -> str:
        if found := _OF_AGENT.match(text):
            self._held = []
            self._rules = _RULES if found["name"] == "ChildFailedError" else 0
            return ""
        self._held.append(line)
        too_long = len(self._held) > _LONGEST or sum(map(len, self._held)) > _LARGEST
        if len(self._held) > 1 and (not text[:1].isspace() or too_long):
            held, self._held = self._held, []
            return "".join(held)
        return ""
