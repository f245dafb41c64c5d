"""Patterns of ignore files that would take for ever, and that the faster way to match means the same."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import cpu_at_most

from mnt.errors import MntError
from mnt.push import ignore
from mnt.push.tree import walk

pytestmark = pytest.mark.one_python

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


def nested(top: Path, text: str, depth: int, files: int) -> None:
    """A tree with long names, in which each directory has an ignore file."""
    here = os.open(top, os.O_PATH)
    for _ in range(depth):
        with open(".gitignore", "w", opener=lambda name, flags: os.open(name, flags, dir_fd=here)) as file:  # noqa: B023
            file.write(text)
        os.mkdir("a" * 250, dir_fd=here)
        below = os.open("a" * 250, os.O_PATH, dir_fd=here)
        os.close(here)
        here = below
    for index in range(files):
        os.close(os.open("a" * 200 + f"{index}", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


NESTED = {
    "the tree of the report": ("\n".join(f"**/*aaaaaaaaaaab{i:x}/**/z" for i in range(3900)), 15, 100),
    "few lines, many files": ("\n".join(f"**/*aaaaaaaaaaab{i:x}/**/z" for i in range(600)), 15, 4000),
    "many stars": ("\n".join("**/*?" * 45 + f"b{i:x}" for i in range(200)), 12, 4000),
    "many sizes": ("\n".join(f"{i}" + "?" * 20 for i in range(9990)), 15, 10),
    "many patterns by name": ("\n".join(f"*{i:x}*zz" for i in range(2500)), 15, 4000),
}


@pytest.mark.parametrize(
    ("text", "depth", "files"),
    [
        pytest.param(*case, id=name, marks=() if name == "few lines, many files" else pytest.mark.matrix)
        for name, case in NESTED.items()
    ],
)
def test_files_that_are_too_much_only_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, depth: int, files: int
) -> None:
    """Each is within its limits. Here they may take a tenth of what they may take elsewhere."""
    nested(tmp_path, text, depth, files)
    monkeypatch.setattr(ignore, "_MOST_STEPS", ignore._MOST_STEPS // 10)
    with cpu_at_most(40), pytest.raises(MntError) as refused:  # 3 on an idle machine
        walk(tmp_path)
    assert ".gitignore: " in refused.value.message
    assert "minutes" in refused.value.message or "than any tree needs" in refused.value.message
    assert refused.value.fix


def test_small_files_in_very_many_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To compile their patterns counts too."""
    text = "\n".join(f"{i}*" for i in range(1000))
    for index in range(60):
        (tmp_path / f"{index}").mkdir()
        (tmp_path / f"{index}/.gitignore").write_text(text.replace("*", f"{index}*"))
    monkeypatch.setattr(ignore, "_MOST_STEPS", ignore._MOST_STEPS // 20)
    with cpu_at_most(40), pytest.raises(MntError, match=r"\.gitignore: .* minutes"):
        walk(tmp_path)


def test_an_ordinary_tree_is_far_from_the_limit() -> None:
    """Hundreds of patterns, as GitHub's templates have them, and 100,000 files."""
    kinds = ["*.o{}", "build{}/", "/dist{}", "**/cache{}/", "logs/**/*.log{}", "!keep{}", ".venv{}", "*{}~"]
    text = "\n".join(kinds[i % len(kinds)].format(i) for i in range(600)).encode()
    files = ignore.IgnoreFiles()
    file = files.read(".gitignore", text, 0, ())
    path = b"src/package/subpackage/module_with_a_name/test_of_something.py"
    assert files._left - 100_000 * file.steps(path) > 0
    assert files.verdict((file,), path) is None


def test_a_tree_with_the_pattern_of_the_report(tmp_path: Path) -> None:
    (tmp_path / ".mntignore").write_text("a*" * 25 + "b\n" + "**/" * 20 + "c\n")
    (tmp_path / ("a" * 200)).write_text("")
    started = time.process_time()
    assert len(walk(tmp_path).entries) == 3
    assert time.process_time() - started < 1
