"""Looking at what runs, until it is as it should be."""

from __future__ import annotations

import time
from collections.abc import Callable

from mnt.lab import LabHost


def running(host: LabHost, word: str) -> list[str]:
    """Command lines on the host that hold `word`."""
    lines = host.exec(["ps", "-eo", "args="]).stdout.splitlines()
    return [line for line in lines if word in line and "ps -eo" not in line]


def eventually(condition: Callable[[], bool], within: float = 10.0) -> bool:
    """Whether the condition comes to hold, looked at again and again."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()
