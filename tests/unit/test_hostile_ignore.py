"""Patterns of ignore files that would take for ever, and that the faster way to match means the same."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnt.errors import MntError
from mnt.push import ignore
from mnt.push.tree import walk

PLAIN = {ignore._STAR: b"[^/]*", ignore._DIRECTORIES: b"(?:.*/)?", ignore._ALL: b".*"}

glob = st.lists(
    st.sampled_from(["*", "**", "**/", "/**/", "/", "a", "b", "ab", "?", "[ab]", "[!a]", "\\*", "\\/"]),
    max_size=9,
).map("".join)
path = st.lists(st.text("ab*", min_size=1, max_size=5), min_size=1, max_size=6).map("/".join)


@settings(max_examples=1000, deadline=None)
@given(glob, path, st.booleans())
def test_the_first_fit_means_the_same_as_every_fit(text: str, name: str, directory: bool) -> None:
    """Compared with the plain expression, which tries every place for every star."""
    (pattern,) = ignore.parse(text.encode(), 0) or (None,)
    if pattern is None:
        return
    name += "/" * directory
    line = text.removesuffix("/").removeprefix("/").encode()
    end = b"(?<!/)/" if text.endswith("/") else b"(?<!/)/?"
    plain = re.compile(b"".join(PLAIN.get(part, part) for part in ignore._translate(line)) + end, re.DOTALL)
    start = 0 if pattern.offset is not None else name.rfind("/", 0, -1) + 1
    assert bool(pattern.regex.fullmatch(name.encode(), start)) is bool(plain.fullmatch(name.encode(), start))


HOSTILE = {
    "a star 25 times": "a*" * 25,
    "and another end": "a*" * 25 + "b",
    "a star 1,000 times": "a*" * 1000 + "b",
    "stars first": "*a" * 500 + "*..b",
    "any byte": "*?" * 200 + "b",
    "directories": "**/" * 20 + "b",
    "directories and names": "**/a/" * 20 + "b",
    "directories and stars": "**/*a*/" * 20 + "b",
    "directories and stars, all below": "**/*a*/" * 20 + "b/**",
    "brackets": "[a-z]*" * 20 + "!",
    "brackets that are not": "[!b-z]*" * 500 + "!",
    "directories in a name": "a**/" * 20 + "b",
    "a star in each directory": "*/" * 500 + "b",
    "a long name": "a" * 100_000,
    "many stars": "*" * 250_000 + "b",
    "many directories": "**/" * 1000 + "b",
    "many directories with names": "**/a/" * 1000 + "b",
    "backslashes": "\\" * 250_001,
    "spaces": "a" + " " * 250_000,
    "a bracket that is not closed": "[" * 9000,
    "classes": "[[:alpha:]]*" * 200 + "!",
    "a thousand patterns with many stars": "\n".join(f"{i}" + "a*" * 39 for i in range(500)),
    "as many bytes as may be": "\n".join(f"{i}" + "?" * 20 for i in range(9_999)),
    "ten thousand patterns": "\n".join(f"*{i}*x" for i in range(9_990)),
}
PATHS = [
    b"a" * 4000,
    b"a" * 250 + b"!",
    b"/".join([b"a" * 30] * 100),
    b"/".join([b"a"] * 2000),
    b"/".join([b"a"] * 2000) + b"/b",
    b"ab" * 2000,
    b"aab/" * 900 + b"x/",
]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_it_is_answered_soon(text: str) -> None:
    started = time.process_time()
    patterns = ignore.parse(text.encode(), 0)
    for name in PATHS:
        ignore.verdict(patterns, name)
    assert time.process_time() - started < 6  # 2 on an idle machine


@pytest.mark.parametrize(
    "text", ["a\n" * 100_000, "[a]" * 20_000, "x" * 300_000, "a*" * 1001, "a*a*a*a*a*\n" * 9000]
)
def test_more_than_any_tree_needs_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / ".mntignore").write_text(text)
    (tmp_path / "file").write_text("")
    started = time.process_time()
    with pytest.raises(MntError, match=r"\.mntignore: (more|larger) than"):
        walk(tmp_path)
    assert time.process_time() - started < 2


def test_a_tree_with_the_pattern_of_the_report(tmp_path: Path) -> None:
    (tmp_path / ".mntignore").write_text("a*" * 25 + "b\n" + "**/" * 20 + "c\n")
    (tmp_path / ("a" * 200)).write_text("")
    started = time.process_time()
    assert len(walk(tmp_path).entries) == 3
    assert time.process_time() - started < 1
