"""A command that runs on a host, whatever client carries it; and who writes its standard input."""

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
    """Nothing came on standard output in time."""


def remaining(deadline: float) -> float:
    """Seconds until `deadline` (time.monotonic()). Raises ReadTimeout after it."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise ReadTimeout
    return left


class Writer:
    """Writes in a thread of its own, so that whoever reads never blocks on a full pipe.

    Args:
        send: takes a piece. An OSError of it ends the writing: the command has ended, for the reader to see.
        end: closes the input.
        on_error: called when iterating over what is to be written has raised; `check` raises that.
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
        """Write them after what was given before."""
        self._waiting.put(chunks)

    def end(self) -> None:
        """Close the input after what was given before."""
        self._waiting.put(None)

    def close(self, timeout: float) -> None:
        """End the thread, within `timeout` seconds where what is being written does not hold it up."""
        self.end()
        self._thread.join(timeout)

    def check(self) -> None:
        """Raise what iterating raised."""
        if self._error is not None:
            raise self._error

    def _work_off(self) -> None:
        try:
            for chunk in chain.from_iterable(iter(self._waiting.get, None)):
                try:
                    self._send(chunk)
                except OSError:
                    break
        except BaseException as error:  # noqa: BLE001 - belongs to the thread that reads
            self._error = error
            self._on_error()
        self._end()


class RunningCommand(ABC):
    """A command that runs on a host. Leaving the `with` block closes it.

    Standard input stays open until then, or until `end_input`: its end tells programs of mnt.remote that the
    head is gone.
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
        """128+N for a signal, None while it runs or where the host did not say."""

    @property
    @abstractmethod
    def stderr(self) -> str:
        """The beginning of standard error, as far as it was read."""

    @abstractmethod
    def read(self, timeout: float | None = None) -> bytes:
        """The next piece of standard output; empty at its end.

        Raises:
            ReadTimeout: nothing came within `timeout` seconds.
            HostError: phase `channel`: the connection is lost; or what iterating over its input raised.
        """

    @abstractmethod
    def close(self) -> None:
        """End it. Safe to call from any thread, and again."""

    def write(self, chunks: Iterable[bytes]) -> None:
        """Send `chunks` to standard input in the background, after what was written before.

        What iterating raises is raised by `read`.
        """
        self._writer.write(chunks)

    def end_input(self) -> None:
        """Close standard input, after what was written before."""
        self._writer.end()
