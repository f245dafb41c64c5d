"""Trees that are deeper than a path can be long."""

from __future__ import annotations

import os
from pathlib import Path


def nest(top: Path) -> None:
    """Make 1,500 directories in each other; Python's own functions cannot remove them, `rm -rf` can."""
    place = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=place)
        inside = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inside
    os.close(place)
