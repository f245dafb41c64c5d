"""Write a file with a nonce to shared storage and hold it there, or look for what another host wrote.

Runs on a host: standard library only, Python 3.8 and newer.

Arguments:
    nonce: str          what the file holds; its name has it too
    deadline: float     seconds that all paths together may take; default 5
    write: {NAME: [directory, ..]}    write into the first of each that takes it
    read: {NAME: file}                look for these, until they can be read

Writing, it emits {"written": {NAME: {"file": str | None, "error": str | None}}}, then waits for the end of
its standard input and removes the files, also when the connection is lost. Its answer is empty. Reading, it
answers {"seen": {NAME: {"delay": seconds | None, "error": str | None}}}.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO

from mnt.remote.probe.children import run_in_children

_INTERVAL = 0.05  # seconds between two looks
_SPARE = 1.0  # seconds beyond the deadline for a child that looks to say what it last saw


def main(args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO) -> dict[str, Any]:
    """Write, or read, as the arguments say."""
    nonce, deadline = args["nonce"], float(args.get("deadline", 5.0))
    if "write" in args:
        hold(args["write"], nonce, deadline, emit, stdin)
        return {}
    jobs = {name: partial(look_for, path, nonce, deadline) for name, path in args["read"].items()}
    silent = {"delay": None, "error": f"no answer in {deadline:g} s"}
    answers = run_in_children(jobs, deadline + _SPARE)
    return {"seen": {name: answer or silent for name, answer in answers.items()}}


def hold(
    places: dict[str, list[str]],
    nonce: str,
    deadline: float,
    emit: Callable[[dict[str, Any]], None],
    stdin: BinaryIO,
) -> None:
    """Write, tell, and remove when standard input ends."""
    name = f".mnt-visible-{nonce}"
    try:
        writes = {place: partial(write, directories, name, nonce) for place, directories in places.items()}
        silent = {"file": None, "error": f"no answer in {deadline:g} s"}
        answers = run_in_children(writes, deadline)
        emit({"written": {place: answer or silent for place, answer in answers.items()}})
        stdin.read()
    finally:
        removals = {place: partial(remove, directories, name) for place, directories in places.items()}
        run_in_children(removals, deadline)


def write(directories: Iterable[str], name: str, nonce: str) -> dict[str, str | None]:
    """Write into the first directory that takes it."""
    error = "no directory"
    for directory in directories:
        path = os.path.join(os.path.expanduser(directory), name)
        try:
            with open(path, "x", encoding="ascii") as file:
                os.fchmod(file.fileno(), 0o644)  # whatever the umask: the reader may be another user there
                file.write(nonce)
            return {"file": path, "error": None}
        except OSError as failure:
            error = f"{directory}: {failure.strerror}"
    return {"file": None, "error": error}


def remove(directories: Iterable[str], name: str) -> None:
    for directory in directories:
        with suppress(OSError):  # it was not written there
            os.unlink(os.path.join(os.path.expanduser(directory), name))


def look_for(path: str, nonce: str, deadline: float) -> dict[str, float | str | None]:
    """Look until the file holds the nonce: seconds that it took, or what was seen last."""
    start = time.monotonic()
    while True:
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                if file.read(len(nonce) + 1) == nonce:
                    return {"delay": time.monotonic() - start, "error": None}
            error = "it holds something else"
        except OSError as failure:
            error = failure.strerror or "it cannot be read"
        if time.monotonic() - start > deadline:
            return {"delay": None, "error": f"{error}: {path}"}
        time.sleep(_INTERVAL)
