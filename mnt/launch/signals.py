"""What a hang-up means to an attached launch: the terminal is gone, the job goes on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class HangUp(KeyboardInterrupt):
    """SIGHUP arrived while a job was being watched."""


class HangUpGuard:
    """Holds SIGHUP back while a job is being started, and turns it into `HangUp` while it is watched."""

    def __init__(self) -> None:
        self.arrived = False
        self.watching = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self.arrived = True
        _leave_terminal()
        if self.watching:
            raise HangUp

    def watch(self) -> None:
        """From here on a hang-up, also one that came before, ends the watching."""
        self.watching = True
        if self.arrived:
            raise HangUp

    def unwatch(self) -> None:
        """From here on a hang-up ends nothing: the job is being stopped."""
        self.watching = False


@contextmanager
def hang_up_guard() -> Iterator[HangUpGuard]:
    """The guard in force; under `nohup`, where SIGHUP is ignored already, it stays ignored."""
    guard = HangUpGuard()
    before = signal.getsignal(signal.SIGHUP)
    if before != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, guard)
    try:
        yield guard
    finally:
        signal.signal(signal.SIGHUP, before)


def _leave_terminal() -> None:
    """What is still said goes nowhere: writing to a terminal that is gone fails with EIO."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if stream.isatty():
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
