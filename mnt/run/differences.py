"""The differences between the answers of two groups of hosts. Pure."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

# The run time of difflib grows with the square of the number of differing lines, and with the number of pairs
# of equal lines: a hundred lines, each a hundred times, take minutes.
_MOST_LINES = 10_000
_MOST_PAIRS = 50_000


@dataclass(frozen=True)
class Answer:
    """The answer of a group of hosts."""

    label: str  # names the group in a diff
    exit_code: int
    stdout: bytes
    stderr: bytes


def diff(usual: Answer, odd: Answer) -> Iterator[bytes]:
    """Unified diffs of both streams, as lines without newlines, and a line if the exit codes differ."""
    for name, before, after in (
        ("stdout", usual.stdout, odd.stdout),
        ("stderr", usual.stderr, odd.stderr),
    ):
        if before != after:
            yield from _diff_stream(f"{usual.label} {name}", f"{odd.label} {name}", before, after)
    if usual.exit_code != odd.exit_code:
        yield f"exit code {odd.exit_code} on {odd.label}, {usual.exit_code} on {usual.label}".encode()


def _diff_stream(before_label: str, after_label: str, before: bytes, after: bytes) -> Iterator[bytes]:
    labels = before_label.encode(), after_label.encode()
    if max(text.count(b"\n") for text in (before, after)) >= _MOST_LINES:
        yield b"%b and %b differ: more than %d lines" % (*labels, _MOST_LINES)
        return
    lines = before.split(b"\n"), after.split(b"\n")
    times = Counter(lines[0])
    if sum(times[line] for line in lines[1]) > _MOST_PAIRS:
        yield b"%b and %b differ: too many lines that repeat" % labels
        return
    yield from difflib.diff_bytes(difflib.unified_diff, *lines, *labels, lineterm=b"")
