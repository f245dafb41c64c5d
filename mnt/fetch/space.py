"""The room on the head's disk, for hosts that send at the same time."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence

_ENTRY = 4096  # bytes that a file, link or directory takes besides its content


class Reservation:
    """Room for the files of one host.

    `problem`: why there is none, for people; None: there is. `takers`: other hosts without whose files there
    would be room, and which have no fewer.
    """

    def __init__(self, host: str, size: int, problem: str | None = None, takers: Sequence[str] = ()) -> None:
        self.host, self.problem, self.takers = host, problem, takers
        self.size = 0 if problem else size  # bytes
        self.left = self.size  # those that have not been written yet


class Space:
    """What is free where a directory is, without what is reserved for others.

    Args:
        directory: its descriptor.
    """

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._reserved: set[Reservation] = set()  # of a host that is done: what it has written

    @contextlib.contextmanager
    def reserved(self, host: str, size: int, entries: int) -> Iterator[Reservation]:
        """Reserve room for so many bytes in so many new files, links and directories, while the block runs.

        Whoever writes takes what is written off `left`.
        """
        needed = size + _ENTRY * entries
        with self._lock:
            found = os.fstatvfs(self._directory)
            free = max(0, found.f_bavail * found.f_frsize - sum(each.left for each in self._reserved))
            mine = Reservation(host, needed)
            if needed > free:
                takers = _takers(self._reserved, needed, needed - free)
                mine = Reservation(host, 0, f"{size:,} bytes, and {free:,} are free", takers)
            elif found.f_files and entries > found.f_favail:  # 0: a file system without a fixed number
                mine = Reservation(host, 0, f"{entries:,} inodes, and {found.f_favail:,} are free")
            self._reserved.add(mine)
        try:
            yield mine
        finally:
            with self._lock:
                mine.size, mine.left = mine.size - mine.left, 0


def _takers(reserved: Iterable[Reservation], needed: int, missing: int) -> list[str]:
    """The fewest hosts that have `needed` bytes or more, and `missing` together; none if there are none."""
    takers: list[str] = []
    for each in sorted(reserved, key=lambda each: each.size, reverse=True):
        if missing > 0 and each.size >= needed:
            takers.append(each.host)
            missing -= each.size
    return takers if missing <= 0 else []
