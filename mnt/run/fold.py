"""Hosts with the same answer as one, and what sets the others apart."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

# difflib takes time with the square of the lines that differ.
_MOST_LINES = 10_000


def group(answers: Mapping[str, Hashable]) -> list[tuple[str, ...]]:
    """Hosts of equal answers together, in the order of the hosts."""
    groups: dict[Hashable, list[str]] = {}
    for host, answer in answers.items():
        groups.setdefault(answer, []).append(host)
    return [tuple(hosts) for hosts in groups.values()]


def majority(groups: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The largest group; of several, the first."""
    return max(groups, key=len)


@dataclass(frozen=True)
class Answer:
    """What a group of hosts has said. `label` names it in a diff."""

    label: str
    exit_code: int
    stdout: bytes
    stderr: bytes


def diff(usual: Answer, odd: Answer) -> Iterator[bytes]:
    """Unified diffs of both streams, as lines without newlines, and a line for another exit code."""
    for name, before, after in (
        ("stdout", usual.stdout, odd.stdout),
        ("stderr", usual.stderr, odd.stderr),
    ):
        if before != after:
            yield from _diff_stream(f"{usual.label} {name}", f"{odd.label} {name}", before, after)
    if usual.exit_code != odd.exit_code:
        yield f"exit code {odd.exit_code} on {odd.label}, {usual.exit_code} on {usual.label}".encode()


def _diff_stream(before_label: str, after_label: str, before: bytes, after: bytes) -> Iterator[bytes]:
    lines = before.split(b"\n"), after.split(b"\n")
    labels = before_label.encode(), after_label.encode()
    if max(map(len, lines)) > _MOST_LINES:
        yield b"%b and %b differ: more than %d lines" % (*labels, _MOST_LINES)
        return
    yield from difflib.diff_bytes(difflib.unified_diff, *lines, *labels, lineterm=b"")
