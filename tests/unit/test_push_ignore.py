"""The ignore rules, judged by git itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnt.errors import UsageError
from mnt.push.tree import walk

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

FILES = [
    ".gitignore",
    "a.py",
    "a.pyc",
    "b c.txt",
    "trail ",
    "#hash",
    "!bang",
    "build/x",
    "build/sub/y.o",
    "data/.gitkeep",
    "data/raw/.gitkeep",
    "data/raw/x.csv",
    "src/build/z",
    "src/a.pyc",
    "src/deep/er/a.py",
    "src/deep/keep/x.bin",
    "[odd]/a\\b",
    "é.txt",
]


def plant(root: Path, ignore_files: dict[str, bytes]) -> None:
    for name in FILES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    for name, text in ignore_files.items():
        (root / name).write_bytes(text)


def told_by_git(root: Path) -> set[str]:
    quiet = {"HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
    subprocess.run(["git", "init", "-q", "."], cwd=root, env=quiet, check=True)
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard", "-z"],
        cwd=root,
        env=quiet,
        check=True,
        capture_output=True,
    )
    return {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}


def told_by_mnt(root: Path) -> set[str]:
    try:
        return {found.path for found in walk(root).entries if found.kind == "file"}
    except UsageError:  # nothing is left
        return set()


@pytest.mark.parametrize(
    "rules",
    [
        b"",
        b"*.pyc\n",
        b"build\n",
        b"build/\n",
        b"/build\n",
        b"/build/\n",
        b"build/\n!build/x\n",
        b"build/*\n!build/x\n",
        b"src/build\n",
        b"data/**\n!data/**/\n!data/**/.gitkeep\n",
        b"data/*\n!data/.gitkeep\n",
        b"*\n!*/\n!*.py\n",
        b"*\n!a.py\n",
        b"*.txt\n!b*\n",
        b"**/deep\n",
        b"src/**/a.py\n",
        b"src/**\n",
        b"**/er/*\n",
        b"**\n",
        b"/**\n",
        b"***\n",
        b"a**py\n",
        b"src/dee**\n",
        b"src/d**/*\n",
        b"?.py\n",
        b"??.txt\n",
        b"[a-c].py\n",
        b"[!a].py\n",
        b"[^b]*\n",
        b"a.[[:alpha:]]y\n",
        b"a.[[:nonsense:]]y\n",
        b"[a-\n",
        b"[]a].py\n",
        b"[a-]*\n",
        b"\\#hash\n\\!bang\n",
        b"#hash\n",
        b"trail \n",
        b"trail\\ \n",
        b"trail\\  \n",
        b"b c.txt   \n",
        b"a.py\\\n",
        b"*.pyc\r\n*.py\r\n",
        b"\xef\xbb\xbfa.py\n",
        b"/\n!\n\n",
        b"\\[odd\\]/\n",
        b"*\\\\b\n",
        b"a.py",
    ],
)
def test_agrees_with_git(tmp_path: Path, rules: bytes) -> None:
    plant(tmp_path, {".gitignore": rules})
    assert told_by_mnt(tmp_path) == told_by_git(tmp_path)


@pytest.mark.parametrize(
    ("top", "below"),
    [
        (b"*.bin\n", b"!keep/\n"),
        (b"*.bin\n", b"!*.bin\n"),
        (b"src/deep/keep\n", b"!keep\n"),
        (b"!a.py\n", b"*.py\n"),
        (b"", b"/a.py\n/er\n"),
        (b"", b"deep/er\n"),
        (b"src/deep/*\n", b"!er\n"),
    ],
)
def test_nested_files_agree_with_git(tmp_path: Path, top: bytes, below: bytes) -> None:
    plant(tmp_path, {".gitignore": top, "src/deep/.gitignore": below})
    assert told_by_mnt(tmp_path) == told_by_git(tmp_path)


PIECES = st.sampled_from(
    [
        "a",
        "b",
        "x",
        "py",
        "src",
        "build",
        "deep",
        "er",
        ".",
        "*",
        "**",
        "?",
        "/",
        "/**/",
        "[a-e]",
        "[!a]",
        "\\",
        " ",
    ]
)
PATTERN = st.tuples(
    st.sampled_from(["", "!", "/"]),
    st.lists(PIECES, min_size=1, max_size=4).map("".join),
    st.sampled_from(["", "/"]),
).map("".join)
RULES = st.lists(PATTERN, max_size=4).map(lambda lines: "\n".join([*lines, ""]).encode())


@settings(max_examples=150, deadline=None)
@given(top=RULES, below=RULES)
def test_agrees_with_git_on_any_patterns(top: bytes, below: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        plant(root, {".gitignore": top, "src/.gitignore": below})
        assert told_by_mnt(root) == told_by_git(root)
