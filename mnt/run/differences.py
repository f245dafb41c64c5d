"""The differences between the answers of two groups of hosts. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

_MOST_LINES = 10_000  # of a stream
_MOST_STEPS = 10_000_000  # of all comparisons together: some seconds


@dataclass(frozen=True)
class Answer:
    """The answer of a group of hosts."""

    label: str  # names the group in a diff
    exit_code: int
    stdout: bytes
    stderr: bytes


class Budget:
    """What the comparisons of some groups with the usual one may cost together, in steps of `_Metered`.

    Each stream may cost an equal part of what those before it have left: an expensive one takes nothing from
    the others.
    """

    def __init__(self, groups: int) -> None:
        self._left = _MOST_STEPS
        self._streams = 2 * groups  # that are still to come

    def share(self) -> int:
        """The steps that the next stream may cost."""
        share = self._left // max(1, self._streams)
        self._streams -= 1
        return share

    def spend(self, steps: int) -> None:
        self._left -= steps


def diff(usual: Answer, odd: Answer, budget: Budget) -> Iterator[bytes]:
    """Unified diffs of both streams, as lines without newlines, and a line if the exit codes differ.

    A line says so if a stream is too long to be compared, or costs more than its share of the budget.
    """
    for name, before, after in (
        ("stdout", usual.stdout, odd.stdout),
        ("stderr", usual.stderr, odd.stderr),
    ):
        share = budget.share()
        if before != after:
            labels = f"{usual.label} {name}".encode(), f"{odd.label} {name}".encode()
            yield from _diff_stream(*labels, before, after, share, budget)
    if usual.exit_code != odd.exit_code:
        yield f"exit code {odd.exit_code} on {odd.label}, {usual.exit_code} on {usual.label}".encode()


def _diff_stream(
    before_label: bytes, after_label: bytes, before: bytes, after: bytes, share: int, budget: Budget
) -> Iterator[bytes]:
    if max(text.count(b"\n") for text in (before, after)) >= _MOST_LINES:
        yield b"%b and %b differ: more than %d lines" % (before_label, after_label, _MOST_LINES)
        return
    lines = before.split(b"\n"), after.split(b"\n")
    metered = _Metered(*lines, share)
    try:
        metered.get_matching_blocks()
    except _TooExpensive:
        yield b"%b and %b differ: to compare them takes too long" % (before_label, after_label)
        return
    finally:
        budget.spend(share - max(0, metered.left))
    # This compares them once more, at the same cost.
    yield from difflib.diff_bytes(difflib.unified_diff, *lines, before_label, after_label, lineterm=b"")


class _TooExpensive(Exception):
    pass


class _Metered(difflib.SequenceMatcher[bytes]):
    """Raises _TooExpensive when a comparison has cost more than `most` steps.

    difflib's run time grows with the square of the number of differing lines, and with the number of pairs of
    equal lines. Each search for the longest match looks at every line of its range, and at every equal line
    of the other text: each of these is a step, of some 0.2 microseconds.
    """

    def __init__(self, before: Sequence[bytes], after: Sequence[bytes], most: int) -> None:
        super().__init__(None, before, after)
        self.left = most
        places = self.b2j  # type: ignore[attr-defined]  # documented, and missing in typeshed
        self._until = list(accumulate((1 + len(places.get(line, ())) for line in before), initial=0))

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        self.left -= self._until[-1 if ahi is None else ahi] - self._until[alo]
        if self.left < 0:
            raise _TooExpensive
        return super().find_longest_match(alo, ahi, blo, bhi)
