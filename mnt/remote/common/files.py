"""Small files to read, and files to replace in one step. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import contextlib
import os


def read(path: str, size: int = -1) -> str:
    """The text of a file, at most `size` bytes of it; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(size).decode(errors="replace")
    except OSError:
        return ""


def replace_file(path: str, text: str) -> None:
    """Replace a file in one step, even if hosts share it; only its owner may read it. Raises OSError."""
    new = f"{path}.{os.uname().nodename}.{os.getpid()}"
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def strerror(error: OSError) -> str:
    """The system's text for an error, without its number and file name."""
    return error.strerror or str(error)


def entries(directory: str) -> list[str]:
    """The names in a directory; none if it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError:
        return []
