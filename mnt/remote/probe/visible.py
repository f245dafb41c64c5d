"""Write a file to shared storage and keep it there, or look for a file that another host wrote.

Runs on a host: standard library only, Python 3.8 and newer.

Arguments:
    content: str        of the file, and a part of its name
    deadline: float     seconds for all paths together; default 5
    write: {NAME: [directory, ..]}    write into the first directory that can be written to
    read: {NAME: file}                wait until these can be read

To write, it emits {"written": {NAME: `mnt.tasks.visible.Written`}}, waits for the end of its standard input,
and removes the files, also if the connection is lost. Its answer is empty. To read, it answers {"seen":
{NAME: `mnt.tasks.visible.Seen`}}.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO

from mnt.remote.common.files import open_regular, strerror
from mnt.remote.probe.children import run_in_children

_INTERVAL = 0.05  # seconds between two attempts to read
_SPARE = 1.0  # seconds after the deadline for a child to report what it read last


def main(args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO) -> dict[str, Any]:
    """Write or read, depending on the arguments."""
    content, deadline = args["content"], float(args.get("deadline", 5.0))
    if "write" in args:
        hold(args["write"], content, deadline, emit, stdin)
        return {}
    jobs = {name: partial(look_for, path, content, deadline) for name, path in args["read"].items()}
    silent = {"delay": None, "error": f"no answer in {deadline:g} s"}
    answers = run_in_children(jobs, deadline + _SPARE)
    return {"seen": {name: answer or silent for name, answer in answers.items()}}


def hold(
    places: dict[str, list[str]],
    content: str,
    deadline: float,
    emit: Callable[[dict[str, Any]], None],
    stdin: BinaryIO,
) -> None:
    """Write the files, and remove them when standard input ends."""
    try:
        writes = {place: partial(write, directories, content) for place, directories in places.items()}
        silent = {"file": None, "error": f"no answer in {deadline:g} s"}
        answers = run_in_children(writes, deadline)
        emit({"written": {place: answer or silent for place, answer in answers.items()}})
        stdin.read()
    finally:
        removals = {place: partial(remove, directories, content) for place, directories in places.items()}
        run_in_children(removals, deadline)


def file_in(directory: str, content: str) -> str:
    """The file with this content in a directory, which is an absolute path."""
    return os.path.join(directory, f".mnt-visible-{content}")


def write(directories: Iterable[str], content: str) -> dict[str, str | None]:
    """Write into the first directory that can be written to."""
    error = "no directory"
    for directory in directories:
        path = file_in(directory, content)
        try:
            with open(path, "x", encoding="ascii") as file:
                os.fchmod(file.fileno(), 0o644)  # despite the umask: the reader may be another user there
                file.write(content)
            return {"file": path, "error": None}
        except OSError as failure:
            error = f"{directory}: {strerror(failure)}"
    return {"file": None, "error": error}


def remove(directories: Iterable[str], content: str) -> None:
    for directory in directories:
        with suppress(OSError):  # it was not written there
            os.unlink(file_in(directory, content))


def look_for(path: str, content: str, deadline: float) -> dict[str, float | str | None] | None:
    """Read until the file has this content: the seconds that it took, or the last problem.

    None: it is no regular file, and was not read.
    """
    start = time.monotonic()
    while True:
        try:
            with open_regular(path, follow=False) as file:
                if file.read(len(content) + 1) == content.encode():
                    return {"delay": time.monotonic() - start, "error": None}
            error: str | None = "its content is different"
        except OSError as failure:
            # A pipe or a device, which mnt never wrote, is not read: it gives no answer.
            error = None if failure.errno == errno.EINVAL else strerror(failure)
        if time.monotonic() - start > deadline:
            return None if error is None else {"delay": None, "error": f"{error}: {path}"}
        time.sleep(_INTERVAL)
