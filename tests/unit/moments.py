"""Another user who acts at a certain moment: each test goes through all moments, so it needs no luck.

A moment is a line of mnt's own code that is about to run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import mnt

_CODE = str(Path(mnt.__file__).parent) + os.sep


class Moment:
    """One moment of the code that runs in `before`."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.reached = False

    @contextmanager
    def before(self, attack: Callable[[], object]) -> Iterator[None]:
        """Call `attack` at this moment of the block, unless it ends before."""

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if self.reached or not frame.f_code.co_filename.startswith(_CODE):
                return None
            if event == "line":
                if not self._left:
                    self.reached = True
                    attack()
                self._left -= 1
            return trace

        outer = sys.gettrace()
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(outer)


def moments(step: int = 1) -> Iterator[Moment]:
    """All moments, until a block ends before its moment: every one, or one of `step`."""
    number = 0
    while True:
        moment = Moment(number)
        yield moment
        if not moment.reached:
            assert number, "the block runs no code of mnt"
            return
        number += step
