"""What sets the answers of two groups of hosts apart."""

from __future__ import annotations

import time

import pytest

from mnt.run.differences import Answer, Budget, diff

USUAL = Answer("node[1-3]", 0, b"one\ntwo\n", b"")


@pytest.mark.parametrize(
    ("odd", "lines"),
    [
        (Answer("node4", 0, b"one\ntwo\n", b""), []),
        (
            Answer("node4", 0, b"one\n2\xff\n", b""),
            [
                b"--- node[1-3] stdout",
                b"+++ node4 stdout",
                b"@@ -1,3 +1,3 @@",
                b" one",
                b"-two",
                b"+2\xff",
                b" ",
            ],
        ),
        (
            Answer("node4", 2, b"one\ntwo\n", b"no\n"),
            [
                *(b"--- node[1-3] stderr", b"+++ node4 stderr", b"@@ -1 +1,2 @@", b"+no", b" "),
                b"exit code 2 on node4, 0 on node[1-3]",
            ],
        ),
        (
            Answer("node4", 0, b"x\n" * 20_000, b""),
            [b"node[1-3] stdout and node4 stdout differ: more than 10000 lines"],
        ),
    ],
)
def test_diffs(odd: Answer, lines: list[bytes]) -> None:
    assert list(diff(USUAL, odd, Budget(1))) == lines


def test_lines_that_repeat_too_often_are_not_compared() -> None:
    lines = [b"%d" % (number % 99) for number in range(9_900)]
    usual, odd = Answer("a", 0, b"\n".join(lines), b""), Answer("b", 0, b"\n".join(reversed(lines)), b"")
    started = time.process_time()
    assert list(diff(usual, odd, Budget(1))) == [
        b"a stdout and b stdout differ: to compare them takes too long"
    ]
    assert time.process_time() - started < 5


def swapped(count: int) -> tuple[bytes, bytes]:
    """Lines, and the same with all neighbours exchanged: each is a match of its own."""
    lines = [b"%d" % number for number in range(count)]
    pairs = zip(lines[1::2], lines[::2], strict=True)
    return b"\n".join(lines), b"\n".join(line for pair in pairs for line in pair)


def test_groups_that_are_expensive_to_compare_cost_seconds_together_and_leave_the_others_theirs() -> None:
    """Each of these streams took 8 s or more."""
    text, other = swapped(9_998)
    usual = Answer("usual", 0, text, text)
    budget = Budget(11)
    started = time.process_time()
    for number in range(10):
        assert list(diff(usual, Answer(f"liar{number}", 0, other, other), budget)) == [
            b"usual stdout and liar%d stdout differ: to compare them takes too long" % number,
            b"usual stderr and liar%d stderr differ: to compare them takes too long" % number,
        ]
    honest = Answer("honest", 0, text.replace(b"\n5000\n", b"\nother\n"), text)
    assert {b"-5000", b"+other"} < set(diff(usual, honest, budget))
    assert time.process_time() - started < 15


def test_many_lines_that_differ_are_compared() -> None:
    text, other = swapped(1_000)
    assert len(list(diff(Answer("a", 0, text, b""), Answer("b", 0, other, b""), Budget(1)))) > 1_000
