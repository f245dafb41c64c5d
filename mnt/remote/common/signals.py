"""Signals that must not end what is under way. On a host too: Python 3.8."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Iterator


@contextlib.contextmanager
def ignored(*numbers: signal.Signals) -> Iterator[None]:
    """Ignore these signals during the block. Only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
