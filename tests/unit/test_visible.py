"""What shows whether storage is shared: the host's program, as one host writes and another looks."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import HANG, PATIENCE, at_most

from mnt.remote.probe import children, visible

CONTENT = "0123abcd"


def write(places: dict[str, list[str]], stdin: io.RawIOBase) -> list[dict[str, Any]]:
    """What the program emits until its standard input ends."""
    frames: list[dict[str, Any]] = []
    reader = io.BufferedReader(stdin)
    assert visible.main({"content": CONTENT, "write": places}, frames.append, reader) == {}
    return frames


def read(files: dict[str, str], deadline: float = PATIENCE) -> dict[str, dict[str, Any]]:
    args = {"content": CONTENT, "read": files, "deadline": deadline}
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
    file = str(tmp_path / f".mnt-visible-{CONTENT}")
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
    assert written["/proc"]["file"] == str(tmp_path / f".mnt-visible-{CONTENT}")
    assert written["/sys"] == {"file": None, "error": "/sys/nothing: No such file or directory"}


def test_a_file_that_appears_late(tmp_path: Path) -> None:
    file = tmp_path / "late"
    os.mkfifo(file)

    def appear() -> None:
        with open(file, "w"):  # waits until somebody looks, who sees nothing in it
            (tmp_path / "new").write_text(CONTENT)
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
    assert seen["/b"] == {"delay": None, "error": f"its content is different: {tmp_path}/other"}


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


def test_all_jobs_run_at_once_each_in_a_child_of_its_own() -> None:
    def meet() -> int:
        barrier.wait(PATIENCE)
        return os.getpid()

    barrier = multiprocessing.get_context("fork").Barrier(3)
    answers = children.run_in_children(dict.fromkeys("abc", meet), PATIENCE)
    assert len({*answers.values(), None, os.getpid()}) == 5
    assert children.run_in_children({}, PATIENCE) == {}


def test_a_child_that_is_killed_takes_nobody_with_it() -> None:
    jobs = {
        "well": lambda: 1,
        "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "last": lambda: "x" * 200_000,
    }
    answers = children.run_in_children(jobs, PATIENCE)
    assert answers == {"well": 1, "killed": None, "last": "x" * 200_000}
