"""playbooks/tasks/head_files.py: which files of a directory of the head are sent to hosts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "playbooks" / "tasks" / "head_files.py"
BEGINS = {
    ".deb": b"!<arch>\ndebian-binary   1",
    ".whl": b"PK\3\4x",
    ".zip": b"PK\3\4x",
    ".tar.gz": b"\x1f\x8b\x08x",
}
# In two parts: a push of this tree must find no key.
KEY = b"-----BEGIN OPENSSH %s-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUA\n" % b"PRIVATE KEY"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with one file of each kind, and a key beside it."""
    (tmp_path / "id_ed25519").write_bytes(KEY)
    directory = tmp_path / "packages"
    directory.mkdir()
    for ending, begin in BEGINS.items():
        (directory / f"a{ending}").write_bytes(begin)
    return directory


def run(place: Path, *endings: str) -> tuple[list[str] | None, str]:
    """What it prints, and why there is nothing."""
    done = subprocess.run(
        [sys.executable, SCRIPT, place, *endings], capture_output=True, text=True, timeout=60
    )
    return (json.loads(done.stdout) if done.returncode == 0 else None), done.stderr


def test_only_files_of_the_kind_are_sent(place: Path) -> None:
    (place / "notes.txt").write_text("x")
    (place / "id_rsa").symlink_to("../id_ed25519")
    (place / "partial").mkdir()
    assert run(place, ".deb") == (["a.deb"], "")
    assert run(place, ".whl", ".tar.gz", ".zip") == (["a.tar.gz", "a.whl", "a.zip"], "")
    assert run(place / "partial", ".deb") == ([], "")


@pytest.mark.parametrize("ending", BEGINS)
def test_no_private_key_is_sent(place: Path, ending: str) -> None:
    path = place / f"torch-2.7.0-py3-none-any{ending}"
    path.symlink_to("../id_ed25519")
    assert run(place, ending) == (
        None,
        f"{path} is a link, and no link is sent to hosts; copy there what it leads to\n",
    )
    path.unlink()
    os.link(place.parent / "id_ed25519", path)
    assert run(place, ending) == (
        None,
        f"{path} is no {ending} file, so it is not sent to hosts; remove it\n",
    )


def test_what_is_no_file(place: Path) -> None:
    os.mkfifo(place / "b.deb")
    found, said = run(place, ".deb")
    assert found is None
    assert "b.deb is no .deb file" in said
    (place / "b.whl").mkdir()
    found, said = run(place, ".whl")
    assert found is None
    assert "b.whl is no .whl file" in said
    assert run(place / "none", ".whl") == (None, f"{place}/none: No such file or directory\n")
