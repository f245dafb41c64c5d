"""Programs that set something up on a host, report it, and undo it at the end."""

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
    """Run a program of `mnt/remote/` while the block runs; yields the first frame that it emits.

    The program ends with its standard input: at the end of the block, or if the connection is lost.

    Raises HostError if the program fails before that frame.
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
    """An empty stream that ends when `done` is set."""
    done.wait()
    yield from ()
