"""Waiting for the thing itself, on a machine that may be busy with something else."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import psutil

T = TypeVar("T")

# The beginning of a job's script: it goes on when the test makes the file `go` beside it.
UNTIL_TOLD = """
import os, sys, time
for _ in range(15000):  # 300 s: a killed test leaves nothing that lives on
    if os.path.exists("go"):
        break
    time.sleep(0.02)
"""

PATIENCE = 180.0  # seconds: far longer than anything here takes, so that only what never comes takes so long
HANG = 1000  # seconds that whatever hangs in a test hangs: `at_most` tells whether it was waited for


def wait_for(look: Callable[[], T | None], within: float = PATIENCE, every: float = 0.02) -> T:
    """What `look` finds, as soon as that is not None, False or an empty list."""
    deadline = time.monotonic() + within
    while True:
        late = time.monotonic() > deadline  # before the last look: this process may be the one that was slow
        found = look()
        if found is not None and found is not False and found != []:
            return found
        if late:
            raise AssertionError(f"nothing within {within} s")
        time.sleep(every)


@contextmanager
def at_most(seconds: float = PATIENCE) -> Iterator[None]:
    """What is done inside does not take longer."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


@contextmanager
def cpu_at_most(seconds: float) -> Iterator[None]:
    """What is done inside, in the main thread, is stopped when it has taken more time of the processor.

    Python's own code and regular expressions can be stopped; a C library ends its call first.
    """

    def late(*_: object) -> None:
        raise AssertionError(f"more than {seconds} s of processor time")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it may end while it is looked at
        return False


def read_until(process: subprocess.Popen[str], wanted: str, times: int = 1) -> str:
    """What the process says until `wanted` has come so many times; fails after its output ends."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if seen.count(wanted) >= times:
            return seen
    raise AssertionError(f"{wanted!r} never came; said:\n{seen}")


def rest_of(process: subprocess.Popen[str]) -> str:
    """What a process still prints to its stdout, which is a pipe, until it ends; it is killed if it does not.

    After lines of it have been read, `communicate` leaves out what was read ahead.
    """
    assert process.stdout is not None
    late = threading.Timer(PATIENCE, process.kill)
    late.start()
    try:
        rest = process.stdout.read()
        process.wait()
    finally:
        late.cancel()
    return rest
