"""A command that runs on a host, over any client, and the thread that writes its standard input."""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TypeVar

C = TypeVar("C", bound="RunningCommand")


class ReadTimeout(TimeoutError):
    """No standard output came in time."""


def remaining(deadline: float) -> float:
    """Seconds until `deadline` (time.monotonic()). Raises ReadTimeout after it."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise ReadTimeout
    return left


class Writer:
    """Writes in a thread of its own, so that the reader never blocks on a full pipe.

    Args:
        send: writes a piece. If it raises OSError, the command has ended, and the writing ends.
        end: closes the input.
        on_error: called when iterating over the pieces has raised an exception, which `check` then raises.
    """

    def __init__(
        self, send: Callable[[bytes], object], end: Callable[[], object], on_error: Callable[[], object]
    ) -> None:
        self._send = send
        self._end = end
        self._on_error = on_error
        self._error: BaseException | None = None
        self._waiting: queue.SimpleQueue[Iterable[bytes] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work_off, daemon=True, name="mnt-stdin")
        self._thread.start()

    def write(self, chunks: Iterable[bytes]) -> None:
        """Write `chunks` after all earlier ones."""
        self._waiting.put(chunks)

    def end(self) -> None:
        """Close the input after all earlier chunks."""
        self._waiting.put(None)

    def close(self, timeout: float) -> None:
        """End the thread, and wait up to `timeout` seconds for it: the current piece may block it."""
        self.end()
        self._thread.join(timeout)

    def check(self) -> None:
        """Raise the exception that iterating has raised."""
        if self._error is not None:
            raise self._error

    def _work_off(self) -> None:
        try:
            for chunk in chain.from_iterable(iter(self._waiting.get, None)):
                try:
                    self._send(chunk)
                except OSError:
                    break
        except BaseException as error:  # noqa: BLE001 - `check` raises it in the thread that reads
            self._error = error
            self._on_error()
        self._end()


class RunningCommand(ABC):
    """A command that runs on a host. Leaving the `with` block closes it.

    Standard input stays open until then, or until `end_input`: programs of mnt.remote take its end for the
    loss of the head.
    """

    host: str  # its name in messages
    _writer: Writer

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """128+N for a signal; None while it runs, or if the host did not report it."""

    @property
    @abstractmethod
    def stderr(self) -> str:
        """What was read of standard error, at least 16 KiB: over a channel its end, else its beginning."""

    @abstractmethod
    def read(self, timeout: float | None = None) -> bytes:
        """The next piece of standard output; empty at its end.

        Raises:
            ReadTimeout: no output came within `timeout` seconds.
            HostError: phase `channel`: the connection is lost.

        Also raises what iterating over the chunks of `write` has raised.
        """

    @abstractmethod
    def close(self) -> None:
        """End it. Safe to call from any thread, and again."""

    def write(self, chunks: Iterable[bytes]) -> None:
        """Send `chunks` to standard input in the background, after all earlier ones."""
        self._writer.write(chunks)

    def end_input(self) -> None:
        """Close standard input after all chunks."""
        self._writer.end()
