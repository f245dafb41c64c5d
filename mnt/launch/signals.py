"""The signals of a launch: after a hang-up (SIGHUP) the job goes on; Ctrl-C and SIGTERM stop it.

A stop that has begun is not lost by another signal. One that comes soon means the same as the first (a user
presses Ctrl-C twice, a service manager sends SIGTERM again); a later one is raised in the stop, which says
what it leaves.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from mnt.ui.console import discard

_SAME = 2.0  # seconds after an interrupt in which another one means the same
_LOST = 5.0  # seconds after which an interrupt of the watching that had no effect is raised again
_LOOK_EVERY = 1.0  # seconds between looks for such an interrupt


class HangUp(KeyboardInterrupt):
    """SIGHUP arrived while a job was watched."""


class SignalGuard:
    """Delays SIGHUP while a job is started, and raises `HangUp` while it is watched.

    SIGINT and SIGTERM raise KeyboardInterrupt, but two that come soon after each other only once.
    """

    def __init__(self) -> None:
        self.arrived = False
        self.watching = False
        self._deaf_until = 0.0  # on time.monotonic()'s clock
        self._interrupted_at = math.inf  # the same; the stop has not begun yet

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self.arrived = True
        _leave_terminal()
        if self.watching:
            raise HangUp

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
        """Ctrl-C or SIGTERM: raise KeyboardInterrupt, but not again within `_SAME`."""
        now = time.monotonic()
        if now < self._deaf_until:
            return
        self._deaf_until = now + _SAME
        self._interrupted_at = now
        raise KeyboardInterrupt

    def look(self, signum: int, frame: FrameType | None) -> None:
        """Raise an interrupt again whose stop has not begun.

        Python drops an exception that a signal raises in a finalizer or a callback. And if the kernel gives a
        signal to another thread, the main thread only acts on it when it next wakes up: this wakes it.
        """
        if self.watching and time.monotonic() - self._interrupted_at > _LOST:
            self._interrupted_at = time.monotonic()
            raise KeyboardInterrupt

    def begin_stop(self) -> None:
        """From now on nothing interrupts for a while, and a hang-up never: the stop must begin."""
        self._interrupted_at = math.inf
        self._deaf_until = time.monotonic() + _SAME
        self.watching = False

    def watch(self) -> None:
        """From now on a hang-up, even an earlier one, ends the watching."""
        self.watching = True
        if self.arrived:
            raise HangUp


@contextmanager
def guarded(on_interrupt: Callable[[], object]) -> Iterator[SignalGuard]:
    """Install a guard, and call `on_interrupt` after a KeyboardInterrupt that is no `HangUp`, or SIGTERM.

    Under `nohup`, SIGHUP is ignored already, and it stays ignored.
    """
    guard = SignalGuard()
    signals = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    before = {signum: signal.getsignal(signum) for signum in signals}
    if before[signal.SIGHUP] != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, guard)
    if before[signal.SIGINT] != signal.SIG_IGN:
        signal.signal(signal.SIGINT, guard.interrupt)
    signal.signal(signal.SIGTERM, guard.interrupt)
    signal.signal(signal.SIGALRM, guard.look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_EVERY, _LOOK_EVERY)
    try:
        yield guard
    except HangUp:
        raise
    except KeyboardInterrupt:
        guard.begin_stop()
        on_interrupt()
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def hang_up_interrupts() -> Iterator[None]:
    """In the block, SIGHUP raises `HangUp`, and does not end the process at once; in the main thread only."""

    def hang_up(signum: int, frame: FrameType | None) -> None:
        _leave_terminal()
        raise HangUp

    before = signal.getsignal(signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread() or before == signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGHUP, hang_up)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _leave_terminal() -> None:
    """Discard further output: writing to a closed terminal would fail with EIO."""
    for stream in (sys.stdout, sys.stderr):
        if stream.isatty():
            discard(stream)
