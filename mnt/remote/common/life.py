"""The head's signs of life, without which what it has begun on a host ends. Runs on a host: Python 3.8.

The end of a connection can stay unnoticed for hours: if a network is cut, no packet says so, and sshd waits
for TCP's own keepalive. So the head sends something every HEARTBEAT seconds, and a host that hears nothing
for SILENCE seconds takes back what it did: a push, or a job that is being started. That is longer than the
head itself waits for a host (14 s, see docs/architecture.md): what the head survives ends nothing on a host.
"""

from __future__ import annotations

import contextlib
import io
import signal
import threading
from types import FrameType
from typing import IO, Any, Callable, Iterator

HEARTBEAT = 4.0  # seconds
SILENCE = 20.0


class Silent(Exception):
    """Nothing came from the head for SILENCE seconds."""


class LivelyInput(io.RawIOBase):
    """A program's standard input. Reading raises Silent if nothing comes for too long.

    Args:
        on_sign: called whenever something has come.
    """

    def __init__(self, stdin: IO[bytes], on_sign: Callable[[], object] = lambda: None) -> None:
        self._stdin: Any = stdin
        self._on_sign = on_sign

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _at_most(SILENCE):
            count: int = self._stdin.readinto1(buffer)
        self._on_sign()
        return count


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise Silent in the block after that time; only in the main thread, which alone gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _give_up(signum: int, frame: FrameType | None) -> None:
    raise Silent
