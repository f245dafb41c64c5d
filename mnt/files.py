"""Files of this machine that are replaced whole."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, text: str, mode: int | None = None) -> None:
    """Replace a file in one step: a reader finds the old one or the new one, never half of one.

    Args:
        text: written as UTF-8, surrogate escapes as the bytes that they stand for.
        mode: of the file; None: what the umask leaves of a new one.

    Raises OSError; then nothing is left of the new one.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
            if mode is not None:
                os.fchmod(descriptor, mode)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
