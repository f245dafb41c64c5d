"""Standard input for many hosts at their own pace."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from waiting import PATIENCE, wait_for

from mnt.run import feed
from mnt.run.feed import Feed, Source


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    try:
        yield read, write
    finally:
        for end in (read, write):
            with suppress(OSError):
                os.close(end)


def test_every_host_reads_all_of_a_pipe() -> None:
    data = os.urandom(1_000_000)
    with pipe() as (read, write):
        source = Source(read)
        got: dict[int, bytes] = {}
        threads = [
            threading.Thread(target=lambda n=n: got.update({n: b"".join(Feed(source))})) for n in range(3)
        ]
        for thread in threads:
            thread.start()
        with open(write, "wb", closefd=False) as file:
            file.write(data)
        os.close(write)
        for thread in threads:
            thread.join(PATIENCE)
        assert got == dict.fromkeys(range(3), data)
        assert b"".join(Feed(source)) == data  # one that comes late


def test_a_file_is_read_from_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    with open(tmp_path / "file", "rb", buffering=0) as file:
        file.seek(4)
        source = Source(file.fileno())
        assert [b"".join(Feed(source)) for _ in range(2)] == [b"456789"] * 2
        assert file.tell() == 4


def test_pieces_come_when_they_are_there() -> None:
    with pipe() as (read, write):
        pieces = iter(Feed(Source(read)))
        os.write(write, b"one")
        assert next(pieces) == b"one"
        os.write(write, b"two")
        assert next(pieces) == b"two"
        os.close(write)
        assert list(pieces) == []


def test_closing_ends_one_that_waits() -> None:
    with pipe() as (read, write):
        waiting = Feed(Source(read))
        pieces = iter(waiting)
        os.write(write, b"one")
        assert next(pieces) == b"one"
        thread = threading.Thread(target=lambda: list(pieces))
        thread.start()
        waits = waiting._source._changed._waiters  # of the condition that it waits for
        wait_for(lambda: bool(waits))
        waiting.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_little_is_read_before_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_AHEAD", 100_000)
    with pipe() as (read, write):
        os.set_blocking(write, False)
        source = Source(read)

        def fill() -> int:
            """Bytes that go in until nothing has moved for a while."""
            count, still = 0, 0
            while still < 10:
                try:
                    count += os.write(write, b"x" * 4096)
                    still = 0
                except BlockingIOError:
                    still += 1
                    time.sleep(0.02)
            return count

        assert fill() < 1_000_000
        pieces = iter(Feed(source))
        next(pieces)
        next(pieces)
        wait_for(lambda: fill() > 0)


@pytest.mark.parametrize(
    ("path", "given"), [("/dev/null", False), ("/dev/zero", True), ("/etc/passwd", True), (None, False)]
)
def test_what_counts_as_input(path: str | None, given: bool) -> None:
    descriptor = os.open(path or "/dev/null", os.O_RDONLY)
    if path is None:
        os.close(descriptor)
        assert feed.is_given(descriptor) == given
        return
    assert feed.is_given(descriptor) == given
    os.close(descriptor)


def test_a_terminal_is_no_input() -> None:
    controller, terminal = os.openpty()
    assert not feed.is_given(terminal)
    os.close(controller)
    os.close(terminal)
