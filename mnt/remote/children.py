"""Functions that may hang, each in a child of its own. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import json
import os
import select
import signal
import time

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs an import of 3 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def run_in_children(jobs: Mapping[str, Callable[[], Any]], deadline: float) -> dict[str, Any]:
    """What each job returns, as JSON carries it, in their order; None where it died, or said nothing in time.

    A dead file server hangs the child that asked it, and nobody else. All of them together take at most
    `deadline` seconds.
    """
    children: dict[int, tuple[str, int]] = {}
    for name, job in jobs.items():
        pid, reader = _start(job)
        children[reader] = (name, pid)
    answers: dict[str, Any] = {}
    end = time.monotonic() + deadline
    while children:
        ready, _, _ = select.select(list(children), [], [], max(0.0, end - time.monotonic()))
        for reader in ready or list(children):
            name, pid = children.pop(reader)
            answer = os.read(reader, 65536) if ready else b""
            os.close(reader)
            answers[name] = json.loads(answer) if answer else None
            if answer:
                os.waitpid(pid, 0)
            else:
                _give_up(pid)
    return {name: answers[name] for name in jobs}


def _start(job: Callable[[], Any]) -> tuple[int, int]:
    """(pid, descriptor to read the answer from)."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        # Only the pipe stays open: a child that is left behind must not keep the SSH session's streams.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(writer, 3)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        os.closerange(4, 1024)
        os.write(3, json.dumps(job()).encode())
    finally:
        os._exit(0)


def _give_up(pid: int) -> None:
    """It dies now, or when its file server comes back: nobody waits for that."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, os.WNOHANG)
