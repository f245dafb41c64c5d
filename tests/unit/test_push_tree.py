"""What of a tree travels."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from mnt.errors import MntError, UsageError
from mnt.push.tree import printable, walk


def make(root: Path, *paths: str, text: str = "x") -> None:
    for path in paths:
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def paths(root: Path) -> list[str]:
    return [found.path for found in walk(root).entries]


def test_directories_come_before_what_is_in_them(tmp_path: Path) -> None:
    make(tmp_path, "a/b", "a-b", "a.b/c", " ")
    assert paths(tmp_path) == ["", " ", "a", "a-b", "a.b", "a.b/c", "a/b"]


def test_git_never_travels_wherever_it_lies(tmp_path: Path) -> None:
    make(tmp_path, ".git/config", "sub/.git", "a", ".gitignore", text="!.git\n")
    assert paths(tmp_path) == ["", ".gitignore", "a", "sub"]


def test_empty_directories_travel(tmp_path: Path) -> None:
    make(tmp_path, "a", "cache/x.pyc", ".gitignore", text="*.pyc\n")
    (tmp_path / "empty").mkdir()
    assert paths(tmp_path) == ["", ".gitignore", "a", "cache", "empty"]


def test_a_directory_that_leaves_itself_out(tmp_path: Path) -> None:
    """As `mnt fetch`, venv, pytest and mypy make theirs."""
    make(tmp_path, "fetched/job/node1/x", ".venv/bin/python", "a", "kept/x", "all/x", "all/sub/y")
    make(tmp_path, "fetched/.gitignore", "kept/.gitignore", text="*\n")
    make(tmp_path, ".venv/.gitignore", text="# Created by venv\n*\n")
    make(tmp_path, "all/.gitignore", text="x\n")
    make(tmp_path, ".mntignore", text="!/kept/x\n")
    assert paths(tmp_path) == [
        *("", ".mntignore", "a", "all", "all/.gitignore", "all/sub", "all/sub/y", "kept", "kept/x")
    ]


def test_mntignore_speaks_last(tmp_path: Path) -> None:
    make(tmp_path, "weights.bin", "notes.md", "sub/weights.bin")
    make(tmp_path, ".gitignore", text="*.bin\n")
    make(tmp_path, "sub/.gitignore", text="*.bin\n")
    make(tmp_path, ".mntignore", text="!weights.bin\n*.md\n.*\n")
    assert paths(tmp_path) == ["", "sub", "sub/weights.bin", "weights.bin"]


def test_rules_above_the_source_count_up_to_the_top_of_the_repository(tmp_path: Path) -> None:
    make(tmp_path, ".gitignore", text="*\n")
    repository = tmp_path / "repo"
    make(repository, ".git/HEAD", "code/a.py", "code/a.pyc", "code/run/x", "code/gen/x")
    make(repository, ".gitignore", text="*.pyc\n/code/run\n/gen\n")
    assert paths(repository / "code") == ["", "a.py", "gen", "gen/x"]


def test_the_source_itself_may_be_ignored(tmp_path: Path) -> None:
    make(tmp_path, ".git/HEAD", "build/a", "build/sub/b")
    make(tmp_path, ".gitignore", text="build/\n")
    assert paths(tmp_path / "build") == ["", "a", "sub", "sub/b"]


def test_a_hidden_directory_as_source_keeps_its_rules_apart(tmp_path: Path) -> None:
    make(tmp_path, ".git/HEAD", ".job/a", ".job/b")
    make(tmp_path, ".gitignore", text="/job/a\n/.job/b\n")
    assert paths(tmp_path / ".job") == ["", "a"]


def test_an_ignore_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    make(tmp_path, "rules", text="a\n")
    make(tmp_path, "a")
    (tmp_path / ".gitignore").symlink_to("rules")
    assert paths(tmp_path) == ["", ".gitignore", "a", "rules"]


def test_names_need_not_be_text(tmp_path: Path) -> None:
    for name in (b"\xff\xfe", b"new\nline", "é ü".encode(), b"-rf", b"'\"$(x)"):
        (tmp_path / os.fsdecode(name)).write_text("x")
    assert {os.fsencode(path) for path in paths(tmp_path)} == {
        b"", b"\xff\xfe", b"new\nline", "é ü".encode(), b"-rf", b"'\"$(x)",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("target", "outside"),
    [("a", False), ("../a", False), ("gone", False), ("../../x", True), ("/etc/passwd", True), ("..", False)],
)
def test_links_travel_as_they_are(tmp_path: Path, target: str, outside: bool) -> None:
    make(tmp_path, "sub/a")
    (tmp_path / "sub/link").symlink_to(target)
    tree = walk(tmp_path)
    found = next(found for found in tree.entries if found.path == "sub/link")
    assert (found.kind, found.value) == ("link", target)
    assert bool(tree.notes) is outside


def test_a_linked_directory_is_a_link(tmp_path: Path) -> None:
    make(tmp_path, "real/a")
    (tmp_path / "link").symlink_to("real")
    assert paths(tmp_path) == ["", "link", "real", "real/a"]


def test_what_is_no_file_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)  # a socket's path may have no more than 107 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")
    tree = walk(tmp_path)
    assert [found.path for found in tree.entries] == ["", "a"]
    assert tree.notes == ("pipe: fifo; left out", "sock: socket; left out")


def test_modes_lose_what_is_about_this_machine(tmp_path: Path) -> None:
    make(tmp_path, "run.sh", "plain")
    (tmp_path / "run.sh").chmod(0o4755)
    (tmp_path / "plain").chmod(0o640)
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir").chmod(0o3775)
    modes = {found.path: found.mode for found in walk(tmp_path).entries}
    assert (modes["run.sh"], modes["plain"], modes["dir"]) == (0o755, 0o640, 0o775)


def test_a_file_that_its_owner_cannot_read_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "a", "secret")
    (tmp_path / "secret").chmod(0o200)
    with pytest.raises(MntError, match=r"secret: mode 0200"):
        walk(tmp_path)


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("x"), "is not a directory"),
        (lambda path: path.mkdir(), "contains nothing to push"),
        (lambda path: make(path, ".git/HEAD"), "contains nothing to push"),
        (lambda path: make(path, "a", ".gitignore", text="*\n"), "contains nothing to push"),
    ],
)
def test_a_source_that_cannot_be_pushed(tmp_path: Path, make_it: object, message: str) -> None:
    make_it(tmp_path / "src")  # type: ignore[operator]
    with pytest.raises(UsageError, match=message):
        walk(tmp_path / "src")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a b/é", "a b/é"),
        ("a\nb", "a\\nb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\udcff", "\\udcff"),
        ("it's", "it's"),
    ],
)
def test_paths_are_shown_on_one_line(path: str, text: str) -> None:
    assert printable(path) == text
