"""Whose a lab is: the names of labs that tests make tell the test session."""

from __future__ import annotations

import os
import re
from itertools import count

from mnt.lab import processes, store
from mnt.lab.lab import down

_NAME = re.compile(r"pytest-(\d+)-(\d+)-\d+")  # pid and start of the test session, number of the lab
_numbers = count(1)


def new_name() -> str:
    """A lab's name that says that this process made it."""
    own = processes.identify(os.getpid())
    return f"pytest-{own.pid}-{own.started}-{next(_numbers)}"


def abandoned() -> list[str]:
    """The labs whose test session is no more."""
    found = [(name, _NAME.fullmatch(name)) for name in store.names()]
    return [
        name for name, match in found if match and not processes.Process(int(match[1]), int(match[2])).alive
    ]


def reclaim() -> None:
    """Remove the labs of test sessions that are no more."""
    for name in abandoned():
        down(name)
