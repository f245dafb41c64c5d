"""Where `mnt setup` keeps Ansible's output: nobody else can write there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mnt.errors import MntError
from mnt.setup.run import _log


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_its_modes_do_not_depend_on_the_umask(state: Path) -> None:
    before = os.umask(0)
    try:
        log = _log("system")
    finally:
        os.umask(before)
    assert log.stat().st_mode & 0o777 == 0o600
    assert {place.stat().st_mode & 0o777 for place in (log.parent, log.parent.parent, state)} == {0o700}


def test_two_runs_in_the_same_second_have_files_of_their_own(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.strftime", lambda form: "20260101-000000")
    first = _log("system")
    first.write_text("of the first")
    (first.parent / "20260101-000000-system-2.log").symlink_to("elsewhere")
    assert _log("system").name == "20260101-000000-system-3.log"
    assert first.read_text() == "of the first"
    assert not (first.parent / "elsewhere").exists()


def test_a_directory_that_others_could_write_to(state: Path) -> None:
    (state / "mnt" / "setup").mkdir(parents=True)
    (state / "mnt" / "setup").chmod(0o777)
    with pytest.raises(MntError, match="mnt/setup"):
        _log("system")
