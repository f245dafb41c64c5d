"""The small files by which a system describes itself. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import os


def read(path: str, size: int = -1) -> str:
    """The text of a file, at most `size` bytes of it; empty where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(size).decode(errors="replace")
    except OSError:
        return ""


def strerror(error: OSError) -> str:
    """The system's words for an error, without its number and file name."""
    return error.strerror or str(error)


def entries(directory: str) -> list[str]:
    """The names in a directory; none where it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError:
        return []
