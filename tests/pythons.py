"""Other versions of Python that this machine has."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest


def interpreter(name: str) -> str:
    """The path of `python3.8` and the like, on PATH or of pyenv's; skips the test where there is none."""
    found = _find(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@cache
def _find(name: str) -> str | None:
    for path in (shutil.which(name), *Path.home().glob(f".pyenv/versions/*/bin/{name}")):
        if path:
            # Its own path, not a shim's: a shim asks the environment which one is meant.
            asked = [path, "-c", "import sys; sys.stdout.write(sys.executable)"]
            told = subprocess.run(asked, capture_output=True, text=True)
            if told.returncode == 0:
                return told.stdout
    return None
