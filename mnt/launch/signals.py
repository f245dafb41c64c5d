"""What a hang-up (SIGHUP) does to an attached launch: the terminal was closed, but the job goes on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class HangUp(KeyboardInterrupt):
    """SIGHUP arrived while a job was watched."""


class HangUpGuard:
    """Delays SIGHUP while a job is started, and raises `HangUp` while it is watched."""

    def __init__(self) -> None:
        self.arrived = False
        self.watching = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self.arrived = True
        _leave_terminal()
        if self.watching:
            raise HangUp

    def watch(self) -> None:
        """From now on a hang-up, even an earlier one, ends the watching."""
        self.watching = True
        if self.arrived:
            raise HangUp

    def unwatch(self) -> None:
        """From now on a hang-up ends nothing: the job is being stopped."""
        self.watching = False


@contextmanager
def hang_up_guard() -> Iterator[HangUpGuard]:
    """Install a guard. Under `nohup`, SIGHUP is ignored already, and it stays ignored."""
    guard = HangUpGuard()
    before = signal.getsignal(signal.SIGHUP)
    if before != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, guard)
    try:
        yield guard
    finally:
        signal.signal(signal.SIGHUP, before)


def _leave_terminal() -> None:
    """Discard further output: writing to a closed terminal would fail with EIO."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if stream.isatty():
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
