"""Write files to a new temporary directory, which exists as long as the connection to the head.

Runs on a host: standard library only, Python 3.8 and newer.

Arguments:
    files: {NAME: text}

It emits {"directory": absolute path}, waits for the end of its standard input, and removes the directory with
its contents, also if the connection is lost. Its answer is empty.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any, BinaryIO


def main(args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO) -> dict[str, Any]:
    """Write the files, and remove them when standard input ends."""
    directory = tempfile.mkdtemp(prefix="mnt-stage-")
    try:
        for name, text in args["files"].items():
            with open(os.path.join(directory, name), "x", encoding="utf-8") as file:
                file.write(text)
        emit({"directory": directory})
        stdin.read()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {}
