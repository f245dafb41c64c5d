"""Write files to a new directory in /tmp, which exists as long as the connection to the head.

Runs on a host: standard library only, Python 3.8 and newer.

Arguments:
    files: {NAME: text}

It emits {"directory": absolute path}, waits for the end of its standard input, and removes the directory with
its contents, also if the connection is lost. Its answer is empty. If other users could exchange the
directory, it emits {"refused": {"message": str, "fix": str}}, and writes nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any, BinaryIO

from mnt.remote.common.owners import make_private_directory
from mnt.remote.common.refusal import Refused


def main(args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO) -> dict[str, Any]:
    """Write the files, and remove them when standard input ends."""
    try:
        directory = make_private_directory("mnt-stage-")
    except Refused as refusal:
        emit({"refused": refusal.document()})
        return {}
    try:
        for name, text in args["files"].items():
            with open(os.path.join(directory, name), "x", encoding="utf-8") as file:
                file.write(text)
        emit({"directory": directory})
        stdin.read()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {}
