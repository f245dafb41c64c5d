"""The room on the head's disk, for hosts that send at the same time."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

_ENTRY = 4096  # bytes that a file, link or directory takes besides its content


class Reservation:
    """Room for one host. `problem`: why there is none, for people; None: there is."""

    def __init__(self, size: int, problem: str | None) -> None:
        self.problem = problem
        self.left = 0 if problem else size  # bytes that have not been written yet


class Space:
    """What is free where a directory is, without what is reserved for others.

    Args:
        directory: its descriptor.
    """

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._reserved: set[Reservation] = set()

    @contextlib.contextmanager
    def reserved(self, size: int, entries: int) -> Iterator[Reservation]:
        """Reserve room for so many bytes in so many new files, links and directories, while the block runs.

        Whoever writes takes what is written off `left`.
        """
        needed = size + _ENTRY * entries
        with self._lock:
            found = os.fstatvfs(self._directory)
            free = max(0, found.f_bavail * found.f_frsize - sum(each.left for each in self._reserved))
            problem = None
            if needed > free:
                problem = f"{size:,} bytes, and {free:,} are free"
            elif found.f_files and entries > found.f_favail:  # 0: a file system without a fixed number
                problem = f"{entries:,} inodes, and {found.f_favail:,} are free"
            mine = Reservation(needed, problem)
            self._reserved.add(mine)
        try:
            yield mine
        finally:
            with self._lock:
                self._reserved.discard(mine)
