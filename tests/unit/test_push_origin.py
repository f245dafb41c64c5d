"""Where releases come from: what a push notes, and what push and launch say of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_lying_push import Site

from mnt.errors import MntError
from mnt.launch import origin as of_launch
from mnt.launch.origin import remarks
from mnt.launch.plan import CodeTree
from mnt.push.manifest import build
from mnt.push.origin import here, pushed_by
from mnt.push.rollback import rollback
from mnt.push.session import Progress
from mnt.push.transfer import push
from mnt.push.tree import TooLarge, walk
from mnt.remote.push.pushed import read_pushed
from mnt.tasks.push import Pushed, find_release, list_releases

PUSHED: Pushed = {
    "user": "bob",
    "head": "elsewhere",
    "source": "/home/bob/other",
    "time": 1.7e9,
    "mnt": "0.1.0",
    "commit": "0badcafe0badcafe",
    "branch": "main",
}


def git(directory: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-C", directory, "-c", "user.name=a", "-c", "user.email=a@b", *words],
        check=True,
        capture_output=True,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "repository" / "tree"
    top.mkdir(parents=True)
    (top / "train.py").write_text("print(1)\n")
    return top


def test_git_gets_no_more_memory_than_it_needs(tree: Path) -> None:
    """A sparse HEAD needs no space: here it is that of a bare repository, which any tree can contain."""
    for name in ("objects", "refs"):
        (tree / name).mkdir()
    (tree / "config").write_text("[core]\nrepositoryformatversion = 0\nbare = true\n")
    (tree / "HEAD").write_text("ref: refs/heads/")
    os.truncate(tree / "HEAD", 1 << 30)
    program = (
        "import resource, sys; from pathlib import Path; from mnt.push.origin import here; "
        "found = here(Path(sys.argv[1]), 1.0); "
        "print(found.commit, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)"
    )
    ran = subprocess.run([sys.executable, "-c", program, tree], capture_output=True, text=True, check=True)
    commit, mebibytes = ran.stdout.split()
    assert commit == "None"
    assert int(mebibytes) < 300


# --- what is noted -----------------------------------------------------------------------------------------


def test_what_git_says_is_noted(tree: Path) -> None:
    """Of the work tree in which the tree is."""
    assert here(tree, 1.0).commit is None
    repository = tree.parent
    git(repository, "init", "-q", "-b", "topic/x")
    assert here(tree, 1.0).commit is None  # there is no commit yet
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "x")
    found = here(tree, 1.0)
    assert len(found.commit or "") == 40
    assert (found.branch, found.source, found.time) == ("topic/x", str(tree), 1.0)
    git(repository, "checkout", "-q", "--detach")
    assert here(tree, 1.0).branch is None


def test_no_program_of_the_tree_is_run(tree: Path, tmp_path: Path) -> None:
    git(tree, "init", "-q")
    witness = tmp_path / "witness"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {witness}\n")
    program.chmod(0o755)
    (tree / ".gitattributes").write_text("* filter=own diff=own\n")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "x")
    for key in ("core.fsmonitor", "filter.own.clean", "diff.own.command", "core.pager", "core.sshCommand"):
        git(tree, "config", key, str(program))
    (tree / "train.py").write_text("print(2)\n")
    assert here(tree, 1.0).commit is not None
    assert not witness.exists()


@pytest.mark.parametrize("name", ["HEAD", "refs/heads/main", "refs/heads"])
def test_what_looks_like_a_commit_and_is_none(tree: Path, tmp_path: Path, name: str) -> None:
    """Where a group shares .git, a member can make a link to this user's token of 40 hex digits."""
    git(tree, "init", "-q", "-b", "main")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "x")
    (tmp_path / "main").write_text("0badcafe" * 5 + "\n")
    place = tree / ".git" / name
    place.rename(tmp_path / "aside")
    place.symlink_to(tmp_path if name == "refs/heads" else tmp_path / "main")
    assert here(tree, 1.0).commit is None


def test_a_commit_that_is_missing_is_not_fetched(tree: Path, tmp_path: Path) -> None:
    """Whoever can write to .git/config can name the program that would fetch it."""
    git(tree, "init", "-q", "-b", "main")
    witness = tmp_path / "witness"
    for key, value in (
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "hers"),
        ("remote.hers.promisor", "true"),
        ("remote.hers.url", f"ext::touch {witness}"),
        ("protocol.ext.allow", "always"),
    ):
        git(tree, "config", key, value)
    (tree / ".git" / "refs" / "heads" / "main").write_text("0badcafe" * 5 + "\n")
    assert here(tree, 1.0).commit is None
    assert not witness.exists()
    subprocess.run(["git", "-C", tree, "rev-parse", "HEAD^{commit}"], capture_output=True)
    assert witness.exists()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "bob@elsewhere from /home/bob/other (main, 0badcaf), "),
        ({"branch": None}, "bob@elsewhere from /home/bob/other (0badcaf), "),
        ({"branch": None, "commit": None}, "bob@elsewhere from /home/bob/other, "),
    ],
)
def test_how_it_is_told(change: dict[str, Any], text: str) -> None:
    assert pushed_by({**PUSHED, **change}).startswith(text)  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"user": None},
        {"source": 7},
        {"time": "now"},
        {"time": -1},
        {"time": 1e300},
        {"time": True},
    ],
)
def test_a_note_that_somebody_has_changed_is_none(tmp_path: Path, change: dict[str, Any]) -> None:
    note = tmp_path / "note"
    path = os.fsencode(note)
    assert read_pushed(path) is None
    note.write_text(json.dumps({**PUSHED, "format": 1, "more": "x", "branch": "b" * 9999}))
    assert read_pushed(path) == {**PUSHED, "branch": "b" * 1000}
    note.write_text(json.dumps({**PUSHED, "format": 1, **change}))
    assert read_pushed(path) is None
    note.write_text("[]")
    assert read_pushed(path) is None


class Said(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def pushed_from(site: Site, tree: Path) -> tuple[str | None, list[str], Any]:
    """The release, what the push said, and who had pushed what it replaced on node1."""
    said = Said()
    with site.fleet("node1", "node2") as fleet:
        result = push(fleet, tree, build(walk(tree)), progress=said)
    assert result.ok
    return result.release, said.warnings, result.hosts["node1"].replaced


def test_a_push_says_what_it_replaces(tmp_path: Path, tree: Path) -> None:
    site, other = Site(tmp_path), tmp_path / "other"
    other.mkdir()
    (other / "train.py").write_text("print(2)\n")
    first, said, replaced = pushed_from(site, tree)
    assert (said, replaced) == ([], None)
    assert pushed_from(site, tree)[1] == []
    second, said, replaced = pushed_from(site, other)
    assert len(said) == 1
    assert said[0].startswith(f"node[1-2]: current, {first}, was pushed by ")
    assert f" from {tree}" in said[0]
    assert replaced["source"] == str(tree)
    assert pushed_from(site, other)[1] == []  # unchanged
    (other / "train.py").write_text("print(3)\n")
    assert pushed_from(site, other)[1] == []  # mine, and from here
    note = site.releases("node2") / f"{second}.pushed.json"
    with site.fleet("node1", "node2") as fleet:
        rollback(fleet, second)
        found = fleet.run(find_release).values_by_host()["node2"]["pushed"]
        assert found is not None
        assert (found["source"], json.loads(note.read_text())["format"]) == (str(other), 1)
        note.write_text(json.dumps({**PUSHED, "format": 1}))
        listed = fleet.run(list_releases).values_by_host()["node2"]["releases"]
    assert {each["release"]: each["pushed"] for each in listed}[str(second)] == PUSHED
    said = pushed_from(site, tree)[1]
    assert [text.partition(" was pushed by ")[2].partition(" from")[0] for text in said] == [
        f"{here(tree).user}@{here(tree).head}",
        "bob@elsewhere",
    ]


# --- what a launch says ------------------------------------------------------------------------------------


def release_of(tree: Path, **change: Any) -> CodeTree:
    found = walk(tree)
    origin = here(tree, found.started).document()
    return CodeTree("/x/releases/ID", "ID", build(found).sha, {**origin, **change})  # type: ignore[typeddict-item]


def test_a_launch_of_this_tree_says_nothing(tree: Path) -> None:
    release = release_of(tree)
    (tree / "sub").mkdir()
    assert remarks(CodeTree("/x", "ID", "sha"), str(tree)) == []  # of an older mnt
    (tree / "sub").rmdir()
    assert remarks(release, str(tree)) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda top: (top / "train.py").write_text("print(2)\n"),
        lambda top: (top / "train.py").chmod(0o755),
        lambda top: (top / "new.py").touch(),
        lambda top: (top / "gone.py").unlink(),
    ],
)
@pytest.mark.parametrize("hashed", [True, False])
def test_a_launch_of_another_state_of_this_tree(
    tree: Path, change: Any, hashed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the user is in a directory of the tree; and where the tree is too large to be read."""
    (tree / "gone.py").touch()
    (tree / "sub").mkdir()
    release = release_of(tree, time=time.time() + (0 if hashed else 0.05))
    while time.time() <= (release.pushed or PUSHED)["time"] + 0.05:  # the kernel's clock for files has ticks
        pass
    if not hashed:
        monkeypatch.setattr(of_launch, "_HASHED", (0, 0))
    assert remarks(release, str(tree / "sub")) == []
    change(tree)
    for place in (tree, tree / "sub"):
        (remark,) = remarks(release, str(place))
        assert ("differs from release ID" if hashed else "was changed since release ID was pushed") in remark
        assert "mnt launch --push" in remark


def test_a_launch_of_something_else(tree: Path, tmp_path: Path) -> None:
    release = release_of(tree)
    (remark,) = remarks(release, str(tmp_path))
    assert remark.startswith("release ID does not come from this directory")
    assert str(tree) in remark
    (remark,) = remarks(release_of(tree, user="bob"), str(tree))
    assert remark.startswith("release ID is not yours: it was pushed by bob@")
    (remark,) = remarks(release_of(tree, head="elsewhere"), str(tree))
    assert remark.startswith("release ID is not yours")


def test_a_tree_that_is_too_large_is_not_walked_to_its_end(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = release_of(tree)
    (tree / "new").touch()
    monkeypatch.setattr(of_launch, "_MOST", 1)
    assert remarks(release, str(tree)) == []
    with pytest.raises(TooLarge):
        walk(tree, 1)
    assert len(walk(tree, 2).entries) == 3  # itself too


def test_a_tree_of_long_paths(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """12,000 files below 190 directories with long names took more than a GiB, and no disk of their maker."""
    release = release_of(tree)
    place = os.open(tree, os.O_RDONLY)
    for _ in range(15):
        os.mkdir("d" * 255, dir_fd=place)
        place, above = os.open("d" * 255, os.O_RDONLY, dir_fd=place), place
        os.close(above)
    for number in range(2200):
        os.symlink("x", f"{number}", dir_fd=place)
    assert remarks(release, str(tree)) == []  # 8 MiB
    with pytest.raises(TooLarge, match="paths with more than 8,388,608 bytes together") as raised:
        walk(tree, None, 8 << 20)
    assert raised.value.fix
    assert ".mntignore" in raised.value.fix
    assert len(walk(tree).entries) > 2200
    os.mkdir("d" * 255, dir_fd=place)
    os.close(place)
    with pytest.raises(MntError, match=r"dd\.\.: a path with more than 4,095 bytes"):
        walk(tree)
    (tree / ".mntignore").write_text("d*\n")
    assert len(walk(tree).entries) < 10


def test_targets_of_links_count_too(tree: Path) -> None:
    for number in range(10):
        (tree / f"link{number}").symlink_to("x" * 4000)
    with pytest.raises(TooLarge):
        walk(tree, None, 39_000)


def test_a_tree_that_cannot_be_read_does_not_prevent_a_launch(tree: Path) -> None:
    release = release_of(tree)
    (tree / ".gitignore").write_bytes(b"x\n" * 20_000)
    with pytest.raises(MntError):
        walk(tree)
    assert remarks(release, str(tree)) == []


def test_comparing_is_quick(tree: Path) -> None:
    for number in range(2000):
        (tree / f"{number}.py").write_text("x" * 4096)
    release = release_of(tree)
    spent = []
    for _ in range(3):
        start = time.process_time()
        assert remarks(release, str(tree)) == []
        spent.append(time.process_time() - start)
    assert min(spent) < 0.6  # 0.2 s on an idle machine
