"""What sets the answers of two groups of hosts apart."""

from __future__ import annotations

import time

import pytest

from mnt.run.differences import Answer, diff

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
    assert list(diff(USUAL, odd)) == lines


def test_lines_that_repeat_too_often_are_not_compared() -> None:
    lines = [b"%d" % (number % 99) for number in range(9_900)]
    started = time.process_time()
    text = list(
        diff(Answer("a", 0, b"\n".join(lines), b""), Answer("b", 0, b"\n".join(reversed(lines)), b""))
    )
    assert text == [b"a stdout and b stdout differ: too many lines that repeat"]
    assert time.process_time() - started < 2
