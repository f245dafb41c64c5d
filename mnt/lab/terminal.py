"""Runs a command in a session and on a terminal of its own.

Whoever has root's terminal can type into it (TIOCSTI, ioctl_tty(2)), and read what root types next, for as
long as a process of theirs lives. So the user of a lab's host never gets it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import selectors
import signal
import subprocess
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence

_INPUT = 0
_BLOCK = 1 << 16  # bytes read at once


def run_apart(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end; its exit code, or 128+N if signal N ended it.

    Of standard input, output and error, those that are a terminal are another one for the command, whose
    input and output are passed on.
    """
    shared = [descriptor for descriptor in (1, 2, _INPUT) if os.isatty(descriptor)]
    if not shared:
        with subprocess.Popen(argv, env=environment, start_new_session=True) as process, _passed_on(process):
            return _exit_code(process.wait())
    ours, theirs = os.openpty()
    _copy_size(shared[0], ours)
    if _INPUT not in shared:  # then the screen's terminal is not raw, and ends the lines itself
        modes = termios.tcgetattr(theirs)
        modes[1] &= ~termios.OPOST
        termios.tcsetattr(theirs, termios.TCSANOW, modes)

    def take_terminal() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    with contextlib.ExitStack() as cleaning:
        cleaning.callback(os.close, ours)
        try:
            process = subprocess.Popen(
                argv,
                env=environment,
                stdin=theirs if _INPUT in shared else None,
                stdout=theirs if 1 in shared else None,
                stderr=theirs if 2 in shared else None,
                start_new_session=True,
                preexec_fn=take_terminal,
            )
        finally:
            os.close(theirs)
        cleaning.enter_context(_passed_on(process))
        cleaning.enter_context(_resized(shared[0], ours))
        if _INPUT in shared:
            cleaning.enter_context(_raw(_INPUT))
        _copy(process, ours, shared[0], given=_INPUT in shared)
        return _exit_code(process.wait())


def _copy(process: subprocess.Popen[bytes], ours: int, screen: int, *, given: bool) -> None:
    """Pass on what is typed, if `given`, and what the command prints, until it ends."""
    ended = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            for descriptor in (ours, ended, *([_INPUT] if given else [])):
                selector.register(descriptor, selectors.EVENT_READ)
            while ended not in (ready := [key.fd for key, _ in selector.select()]):
                if ours in ready and not _pass_on(ours, screen):
                    selector.unregister(ours)
                if _INPUT in ready and not _pass_on(_INPUT, ours):
                    selector.unregister(_INPUT)
        os.set_blocking(ours, False)
        while _pass_on(ours, screen):  # its last words
            pass
    finally:
        os.close(ended)


def _pass_on(source: int, target: int) -> bool:
    """Copy what there is now; False: no more will come, or can be taken."""
    try:
        data = os.read(source, _BLOCK)
        left = memoryview(data)
        while left:
            left = left[os.write(target, left) :]
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno != errno.EIO:  # no process has the other end of the terminal open any more
            raise
        return False
    return bool(data)


@contextlib.contextmanager
def _passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """A signal that would end us goes to the command, whose session our terminal's keys cannot reach."""

    def send(signum: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [(signum, signal.signal(signum, send)) for signum in signals]
    try:
        yield
    finally:
        for signum, handler in before:
            signal.signal(signum, handler)


@contextlib.contextmanager
def _resized(screen: int, ours: int) -> Iterator[None]:
    """The terminal has the size of the screen, also when that changes."""
    before = signal.signal(signal.SIGWINCH, lambda *_: _copy_size(screen, ours))
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def _copy_size(screen: int, ours: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.ioctl(ours, termios.TIOCSWINSZ, fcntl.ioctl(screen, termios.TIOCGWINSZ, bytes(8)))


@contextlib.contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """Every key is passed on as it is, also Ctrl-C."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


def _exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code
