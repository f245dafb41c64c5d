"""What sets the answers of two groups of hosts apart."""

from __future__ import annotations

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
