"""What shows whether storage is shared: the host's program, as one host writes and another looks."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from waiting import HANG, PATIENCE, at_most, wait_for

from mnt.remote.probe import children, visible

NONCE = "0123abcd"


def write(places: dict[str, list[str]], stdin: io.RawIOBase) -> list[dict[str, Any]]:
    """What the program emits until its standard input ends."""
    frames: list[dict[str, Any]] = []
    reader = io.BufferedReader(stdin)
    assert visible.main({"nonce": NONCE, "write": places}, frames.append, reader) == {}
    return frames


def read(files: dict[str, str], deadline: float = PATIENCE) -> dict[str, dict[str, Any]]:
    args = {"nonce": NONCE, "read": files, "deadline": deadline}
    seen: dict[str, dict[str, Any]] = visible.main(args, lambda frame: None, io.BytesIO())["seen"]
    return seen


class Held(io.RawIOBase):
    """A standard input that calls `when_read`, then ends."""

    def __init__(self, when_read: Any) -> None:
        self._when_read = when_read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._when_read()
        return 0


def test_what_is_written_is_read_and_then_gone(tmp_path: Path) -> None:
    file = str(tmp_path / f".mnt-visible-{NONCE}")
    seen: dict[str, Any] = {}
    frames = write({"/shared": [str(tmp_path)]}, Held(lambda: seen.update(read({"/shared": file}))))
    assert frames == [{"written": {"/shared": {"file": file, "error": None}}}]
    assert seen["/shared"]["error"] is None
    assert 0 <= seen["/shared"]["delay"] < PATIENCE
    assert os.listdir(tmp_path) == []


def test_it_is_gone_too_when_the_head_is_lost(tmp_path: Path) -> None:
    def lose() -> None:
        assert os.listdir(tmp_path) != []
        raise ConnectionError("the connection to the head is lost")

    with pytest.raises(ConnectionError):
        write({"/shared": [str(tmp_path)]}, Held(lose))
    assert os.listdir(tmp_path) == []


def test_the_first_directory_that_takes_it(tmp_path: Path) -> None:
    (frame,) = write({"/proc": ["/proc", str(tmp_path)], "/sys": ["/sys/nothing"]}, Held(lambda: None))
    written = frame["written"]
    assert written["/proc"]["file"] == str(tmp_path / f".mnt-visible-{NONCE}")
    assert written["/sys"] == {"file": None, "error": "/sys/nothing: No such file or directory"}


def test_a_file_that_appears_late(tmp_path: Path) -> None:
    file = tmp_path / "late"
    os.mkfifo(file)

    def appear() -> None:
        with open(file, "w"):  # waits until somebody looks, who sees nothing in it
            (tmp_path / "new").write_text(NONCE)
            (tmp_path / "new").replace(file)

    threading.Thread(target=appear).start()
    seen = read({"/shared": str(file)})["/shared"]
    assert 0.05 <= seen["delay"] < PATIENCE


def test_a_file_that_never_appears_or_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visible, "_SPARE", 2 * PATIENCE)
    (tmp_path / "other").write_text("something else")
    with at_most(PATIENCE):
        seen = read({"/a": str(tmp_path / "none"), "/b": str(tmp_path / "other")}, deadline=0.3)
    assert seen["/a"] == {"delay": None, "error": f"No such file or directory: {tmp_path}/none"}
    assert seen["/b"] == {"delay": None, "error": f"it holds something else: {tmp_path}/other"}


def test_storage_that_hangs_is_no_answer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")  # opening it waits for a writer
    seen = read({"/shared": str(tmp_path / "fifo")}, deadline=0.3)["/shared"]
    assert seen == {"delay": None, "error": "no answer in 0.3 s"}


def test_children_answer_hang_or_die_on_their_own() -> None:
    with at_most(PATIENCE):
        answers = children.run_in_children(
            {"well": lambda: [1, "é"], "hangs": lambda: time.sleep(HANG), "dies": lambda: 1 / 0}, 3
        )
    assert list(answers.items()) == [("well", [1, "é"]), ("hangs", None), ("dies", None)]


def test_one_child_does_all_that_is_quick_and_nothing_is_done_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def job(name: str, behind: str = "") -> int:
        with open(tmp_path / name, "x", encoding="ascii"):
            wait_for(lambda: all((tmp_path / other).exists() for other in behind))
        return os.getpid()

    monkeypatch.setattr(children, "PATIENCE", PATIENCE)
    quick = {name: partial(job, name) for name in ("a", "b", "c")}
    assert len(set(children.run_in_children(quick, PATIENCE).values())) == 1
    monkeypatch.setattr(children, "PATIENCE", 3)
    one_is_slow = {
        "d": partial(job, "d"),
        "e": partial(job, "e", "fg"),  # not done before those behind it
        "f": partial(job, "f"),
        "g": partial(job, "g"),
    }
    answers = children.run_in_children(one_is_slow, PATIENCE)
    assert answers["d"] == answers["e"]
    assert len(set(answers.values()) - {None}) == 3
    assert children.run_in_children({}, PATIENCE) == {}


def test_a_child_that_is_killed_takes_nobody_with_it() -> None:
    jobs = {
        "well": lambda: 1,
        "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "last": lambda: "x" * 200_000,
    }
    answers = children.run_in_children(jobs, PATIENCE)
    assert answers == {"well": 1, "killed": None, "last": "x" * 200_000}
