"""Programs that do something, say so, and undo it when they are let go."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mnt.errors import HostError
from mnt.fleet import HostConnection
from mnt.tasks.program import run_program


@contextmanager
def held(connection: HostConnection, name: str, args: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run a program of `mnt/remote/` for as long as the block does; gives the first frame that it emits.

    The program ends with its standard input, at the end of the block or when the host loses us.

    Raises HostError where it fails before that frame.
    """
    done = threading.Event()
    heard: queue.SimpleQueue[dict[str, Any] | HostError] = queue.SimpleQueue()

    def run() -> None:
        try:
            run_program(connection, name, args, stdin=_until(done), timeout=None, on_frame=heard.put)
        except HostError as error:
            heard.put(error)

    holder = threading.Thread(target=run)
    holder.start()
    try:
        first = heard.get()
        if isinstance(first, HostError):
            raise first
        yield first
    finally:
        done.set()
        holder.join()


def _until(done: threading.Event) -> Iterator[bytes]:
    """A stream without bytes that ends with `done`."""
    done.wait()
    yield from ()
