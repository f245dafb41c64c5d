"""The files from which NCCL reads settings. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import os

# A configuration file has a few lines; a longer file is not one.
MAX_BYTES = 16384


def conf_files(home: str | None, system: str = "/etc/nccl.conf") -> list[dict[str, object]]:
    """[{"path", "text"}, ..] of the existing files, in NCCL's order: the first that sets a variable counts.

    `$NCCL_CONF_FILE` is ignored: jobs do not get that variable from the session.
    """
    paths = [os.path.join(home, ".nccl.conf"), system] if home else [system]
    found = ((path, _head(path)) for path in paths)
    return [{"path": path, "text": text} for path, text in found if text is not None]


def _head(path: str) -> str | None:
    """The beginning of a file; None if it does not exist or cannot be read, not even by NCCL."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_BYTES)
    except OSError:
        return None
