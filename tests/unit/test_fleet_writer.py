"""What is written to a command's standard input, by a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from waiting import PATIENCE

from mnt.fleet.wire.command import Writer


class Pipe:
    """Keeps what is sent, and what else the writer reports."""

    def __init__(self, send: Callable[[bytes], object] | None = None) -> None:
        self.sent: list[bytes] = []
        self.ended = threading.Event()
        self.failed = threading.Event()
        self.writer = Writer(send or self.sent.append, self.ended.set, self.failed.set)


def test_pieces_go_in_the_order_in_which_they_were_given() -> None:
    pipe = Pipe()
    more = threading.Event()

    def slow() -> Iterator[bytes]:
        more.wait(PATIENCE)
        yield b"1"
        yield b"2"

    pipe.writer.write(slow())
    pipe.writer.write([b"3"])
    pipe.writer.end()
    assert not pipe.sent
    more.set()
    assert pipe.ended.wait(PATIENCE)
    assert pipe.sent == [b"1", b"2", b"3"]


@pytest.mark.parametrize("kind", [OSError, ValueError])
def test_what_iterating_raises_is_the_readers(kind: type[Exception]) -> None:
    pipe = Pipe()
    pipe.writer.check()

    def broken() -> Iterator[bytes]:
        yield b"1"
        raise kind("the file is gone")

    pipe.writer.write(broken())
    assert pipe.failed.wait(PATIENCE)
    with pytest.raises(kind, match="the file is gone"):
        pipe.writer.check()
    assert pipe.ended.wait(PATIENCE)


def test_a_command_that_has_ended_takes_no_more_and_is_no_error() -> None:
    def refuse(chunk: bytes) -> None:
        raise BrokenPipeError

    pipe = Pipe(refuse)
    pipe.writer.write([b"1", b"2"])
    assert pipe.ended.wait(PATIENCE)
    pipe.writer.check()
    assert not pipe.failed.is_set()
