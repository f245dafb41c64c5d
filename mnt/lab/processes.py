"""Find the processes of a lab without relying on pids.

Every process that starts a lab's namespaces has the lab's token in its environment from its start. So all
processes that a killed `mnt lab up` left behind are found, and no other process is mistaken for one.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil

from mnt.errors import MntError
from mnt.remote.job.procs import find, read_process

TOKEN_VARIABLE = "MNT_LAB_TOKEN"  # noqa: S105 - the name of a variable


@dataclass(frozen=True)
class Process:
    """A process, identified by its pid and its start time (clock ticks since boot)."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        return find({"pid": self.pid, "start_time": self.started}) is not None


def identify(pid: int) -> Process:
    """The process that has this pid now. Raises MntError if there is none."""
    found = read_process(pid)
    if found is None or not found.alive:
        raise MntError(f"process {pid} of the lab is gone")
    return Process(pid, found.start_time)


def carries(pid: int, token: str) -> bool:
    """Whether the process started with the lab's token in its environment."""
    try:
        return psutil.Process(pid).environ().get(TOKEN_VARIABLE) == token
    except psutil.Error:
        return False


def bearers(token: str) -> list[int]:
    """The pids of all processes that carry the token."""
    return [pid for pid in psutil.pids() if carries(pid, token)]


def end_all(token: str, *, timeout: float = 30.0) -> None:
    """Kill whatever carries the token, until nothing does. Raises MntError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while pids := bearers(token):
        for pid in pids:
            _kill(pid, token)
        if time.monotonic() > deadline:
            raise MntError(f"processes of the lab do not die: {' '.join(map(str, pids))}")
        time.sleep(0.01)


def _kill(pid: int, token: str) -> None:
    """Kill this process. While the descriptor is open, the pid cannot be reused for another process."""
    with suppress(ProcessLookupError):  # it ended meanwhile
        descriptor = os.pidfd_open(pid)
        try:
            if carries(pid, token):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)
