"""Progress bars in the output of ranks: one live line on a terminal, and one line in a file. Pure.

A bar rewrites its line after a carriage return. torchrun (torch 2.13, `tail_log.py`) turns this into an end
of line. Where it finds a line without an end, as that of a bar is for a while, it writes what there is, and
begins what comes next, the end of this line or a line of the rank's other stream, with the rank's prefix
again. So what stands before a second prefix counts as a state of a bar, as does each line that tqdm or Keras
would write. Of states in a row that differ in figures only, the last one stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_PREFIX = re.compile(r"\[rank\d+\] ")
_BAR = re.compile(
    r"\d{1,3}%\|.{0,500}\| {0,20}\d|\b\d{1,20}/\d{1,20} \[[=>. ]{1,500}\]"
)  # no screen is wider
_RATE = re.compile(r"(?:it/s|s/it)")
_FIGURES = re.compile(r"[\W\d_]+")
_LONGEST = 1 << 16  # characters of a line; a longer one is passed on in pieces
_LONGEST_BAR = 4096  # characters of a line that may be a bar
_MOST_RANKS = 256  # of a node whose bars are known; the prefixes are the node's word


class Bars:
    """Passes on the lines of the nodes; of the states of a bar, only the last.

    Args:
        show: takes (host, text), whole lines.
        live: takes (host, text) of each state of a bar, one line without its end.
    """

    def __init__(self, show: Callable[[str, str], None], live: Callable[[str, str], None]) -> None:
        self._show, self._live = show, live
        self._partial: dict[str, str] = {}
        self._ranks: dict[str, dict[str, _Rank]] = {}  # by host and prefix

    def feed(self, host: str, text: str) -> None:
        """Take the next piece of a node's output."""
        *lines, rest = (self._partial.pop(host, "") + text).split("\n")
        shown = "".join(f"{each}\n" for line in lines for each in self._line(host, _overwritten(line)))
        if len(rest) > _LONGEST:
            shown, rest = shown + rest, ""
        elif rest:
            self._partial[host] = rest
        if shown:
            self._show(host, shown)
        if "\r" in rest or self._is_bar(host, rest):
            self._live(host, _overwritten(rest))

    def close(self) -> None:
        """Show what was held back."""
        for host, ranks in self._ranks.items():
            for rank in ranks.values():
                for line in rank.rest():
                    self._show(host, f"{line}\n")
        for host, rest in self._partial.items():
            self._show(host, rest)
        self._partial = {}

    def _rank(self, host: str, prefix: str) -> _Rank | None:
        """What is held back of a rank; None: the node has shown too many others."""
        known = self._ranks.setdefault(host, {})
        if prefix not in known and len(known) == _MOST_RANKS:
            return None
        return known.setdefault(prefix, _Rank(prefix))

    def _is_bar(self, host: str, rest: str) -> bool:
        """Whether the beginning of a line goes on with a rank's bar."""
        prefix = _PREFIX.match(rest)
        rank = self._ranks.get(host, {}).get(prefix[0]) if prefix else None
        return _BAR.search(rest) is not None or (rank is not None and rank.goes_on(rest))

    def _line(self, host: str, line: str) -> Iterator[str]:
        """The lines that are shown because of this one."""
        prefix = _PREFIX.match(line)
        rank = self._rank(host, prefix[0]) if prefix and len(line) <= _LONGEST_BAR else None
        if prefix is None or rank is None:
            yield line
            return
        *states, last = _pieces(line[prefix.end() :], prefix[0])
        if _BAR.search(last):
            states.append(last)
            last = ""
        for state in states:
            yield from rank.bar(prefix[0] + state)
            self._live(host, prefix[0] + state)
        if last or not states:
            yield from rank.line(prefix[0] + last, within=bool(states))


def _overwritten(line: str) -> str:
    """A line as a terminal shows it in the end, if carriage returns are left in it (without torchrun)."""
    prefix = _PREFIX.match(line)
    begin = line[: prefix.end()] if prefix else ""
    *before, last = line[len(begin) :].rstrip("\r").split("\r")
    return begin + (last or next(filter(None, reversed(before)), "")) if before else line


def _pieces(body: str, prefix: str) -> list[str]:
    """The pieces between repeated prefixes; with the first one, a rank may itself begin its line."""
    second = body.find(prefix, 1)
    return [body] if second < 0 else [body[:second], *body[second + len(prefix) :].split(prefix)]


class _Rank:
    """What is held back of one rank: the state of its bar, and an empty line, with which a bar may begin."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._state: str | None = None
        self._empty = False
        self._open = False  # the end of a bar's line comes yet, after a line of the other stream

    def goes_on(self, text: str) -> bool:
        """Whether a text is another state of the bar that is held."""
        return self._state is not None and _skeleton(self._state) == _skeleton(text)

    def bar(self, line: str) -> Iterator[str]:
        """What is shown because of the next state of a bar."""
        if self._state is not None and not self.goes_on(line):
            yield self._state
        self._state, self._empty = line, False

    def line(self, line: str, *, within: bool) -> Iterator[str]:
        """What is shown because of another line; `within` that of a bar, which has not ended."""
        if line == self._prefix and self._open:
            self._open = False
            return
        self._open = within
        yield from self.rest()
        if line == self._prefix:
            self._empty = True
        else:
            yield line

    def rest(self) -> Iterator[str]:
        """What is held back; it is shown now."""
        if self._state is not None:
            yield self._state
        if self._empty:
            yield self._prefix
        self._state, self._empty = None, False


def _skeleton(text: str) -> str:
    return _FIGURES.sub("", _RATE.sub("", text))
