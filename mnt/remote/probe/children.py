"""Functions that may hang, in a child process. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from contextlib import suppress

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs an import of 3 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Job = Callable[[], Any]

PATIENCE = 0.1  # seconds that a job may keep those behind it waiting


def run_in_children(jobs: Mapping[str, Job], deadline: float) -> dict[str, Any]:
    """What each job returns, as JSON carries it, in their order; None where it died, or said nothing in time.

    One child does them all, one after the other, for a child costs as much as most jobs do. Once one of them
    dies, or takes long, each of the rest gets a child of its own: a dead file server hangs the child that
    asked it, and nobody else. All of them together take at most `deadline` seconds, and each runs once.
    """
    answers: dict[str, Any] = dict.fromkeys(jobs)
    if not jobs:
        return answers
    todo = list(jobs)
    running: dict[_Child, str] = {}

    def begin(child: _Child) -> None:
        child.begin()
        running[child] = todo.pop(0)

    end = time.monotonic() + deadline
    first = _Child(list(jobs.values()))
    begin(first)
    while running:
        left = max(0.0, end - time.monotonic())
        ready, _, _ = select.select(list(running), [], [], min(left, PATIENCE) if todo else left)
        for child in ready:
            answer = child.answer()
            answers[running.pop(child)] = answer
            if child is first and todo and answer is not None:
                begin(child)
            else:
                child.close()
        if todo and (not ready or first not in running):
            while todo:
                begin(_Child([jobs[todo[0]]]))
        elif not ready and time.monotonic() >= end:
            break
    for child in running:
        child.close()
    return answers


class _Child:
    """Does its jobs in their order, each of them when it is told to begin the next."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._answers, answers = os.pipe()
        orders, self._orders = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                # Only the pipes stay open: who is left behind must not keep the SSH session's streams.
                null = os.open(os.devnull, os.O_RDWR)
                for source, target in ((null, 1), (null, 2), (orders, 0), (answers, 3)):
                    os.dup2(source, target)
                os.closerange(4, 1024)
                for job in jobs:
                    if not os.read(0, 1):
                        break
                    os.write(3, json.dumps(job()).encode() + b"\n")
            finally:
                os._exit(0)
        os.close(answers)
        os.close(orders)

    def fileno(self) -> int:
        """Can be read once there is an answer, or none will come."""
        return self._answers

    def begin(self) -> None:
        """With the next job."""
        with suppress(BrokenPipeError):  # somebody has killed it
            os.write(self._orders, b".")

    def answer(self) -> Any:
        """None: it died."""
        text = b""
        while not text.endswith(b"\n"):
            part = os.read(self._answers, 65536)
            if not part:
                return None
            text += part
        return json.loads(text)

    def close(self) -> None:
        """It dies now, or when its file server comes back: nobody waits for that."""
        os.close(self._orders)
        os.close(self._answers)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, os.WNOHANG)
