"""playbooks/tasks/munge_key.py: root writes a key where the user munge may have put links."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "playbooks" / "tasks" / "munge_key.py"
USER = "nobody"  # in the place of munge
KEY = bytes(range(128))

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory of the user, beside a file of root's."""
    (tmp_path / "secret").write_text("of root")
    (tmp_path / "secret").chmod(0o600)
    directory = tmp_path / "munge"
    directory.mkdir()
    return directory


def run(word: str, place: Path, given: bytes = b"") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-I", "-c", SCRIPT.read_text(), word, place, USER]
    text = base64.b64encode(given).decode()
    return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60)


def said(word: str, place: Path, given: bytes = b"") -> str:
    done = run(word, place, given)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def state(path: Path) -> tuple[bytes, str, str, str]:
    return path.read_bytes(), path.owner(), path.group(), stat.filemode(path.lstat().st_mode)


def test_one_host_makes_it_and_others_write_it(place: Path) -> None:
    key = place / "munge.key"
    assert said("check", place) == "written"
    assert list(place.iterdir()) == []
    assert said("make", place) == "written"
    made = base64.b64decode(said("read", place))
    assert len(made) == 128
    assert (said("make", place), said("check", place), said("write", place, made)) == ("", "", "")
    assert said("write", place, KEY) == "written"
    assert state(key) == (KEY, USER, "nogroup", "-r--------")
    assert list(place.iterdir()) == [key]


def test_only_munge_can_read_it(place: Path) -> None:
    key = place / "munge.key"
    key.write_bytes(KEY)
    assert said("check", place) == "written"
    assert state(key)[1] == "root"
    assert said("make", place) == "written"
    assert state(key) == (KEY, USER, "nogroup", "-r--------")


@pytest.mark.parametrize("word", ["make", "check", "read", "write"])
@pytest.mark.parametrize("how", ["link", "hard link", "directory", "pipe"])
def test_no_file_of_roots_changes_or_is_read(place: Path, word: str, how: str) -> None:
    key, secret = place / "munge.key", place.parent / "secret"
    if how == "link":
        key.symlink_to(secret)
    elif how == "hard link":
        key.hardlink_to(secret)
    elif how == "pipe":
        os.mkfifo(key)
    else:
        key.mkdir()
    before = state(secret)
    done = run(word, place, KEY)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"look at it: sudo ls -l {key}" in done.stderr
    assert state(secret) == before


@pytest.mark.parametrize("word", ["make", "write"])
@pytest.mark.parametrize("target", ["secret", "new"])
def test_no_file_is_made_through_a_link(place: Path, word: str, target: str) -> None:
    """An earlier program wrote to munge.key.new first."""
    secret = place.parent / "secret"
    (place / "munge.key.new").symlink_to(place.parent / target)
    before = state(secret)
    assert said(word, place, KEY) == "written"
    assert state(secret) == before
    assert not (place.parent / "new").exists()
    assert state(place / "munge.key")[1:] == (USER, "nogroup", "-r--------")
