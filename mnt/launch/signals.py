"""The signals of a launch: after a hang-up (SIGHUP) the job goes on; Ctrl-C and SIGTERM stop it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from mnt.ui.console import discard


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


@contextmanager
def guarded(on_interrupt: Callable[[], object]) -> Iterator[HangUpGuard]:
    """Install a guard, and call `on_interrupt` after a KeyboardInterrupt that is no `HangUp`, or SIGTERM.

    Under `nohup`, SIGHUP is ignored already, and it stays ignored.
    """
    guard = HangUpGuard()
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGHUP, signal.SIGTERM)}
    if before[signal.SIGHUP] != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, guard)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C
    try:
        yield guard
    except HangUp:
        raise
    except KeyboardInterrupt:
        guard.watching = False  # a hang-up must not interrupt the stop
        on_interrupt()
        raise
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _leave_terminal() -> None:
    """Discard further output: writing to a closed terminal would fail with EIO."""
    for stream in (sys.stdout, sys.stderr):
        if stream.isatty():
            discard(stream)
