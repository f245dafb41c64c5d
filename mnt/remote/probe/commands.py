"""Run commands of the host in parallel, with a deadline. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence

from mnt.remote.probe.children import read_all


def find(program: str) -> str | None:
    """The path of a program; a non-interactive PATH may lack some of these directories."""
    directories = [*os.environ.get("PATH", "").split(":"), "/usr/bin", "/usr/local/bin", "/usr/sbin"]
    for directory in filter(None, directories):
        path = os.path.join(directory, program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def run_all(commands: Mapping[str, Sequence[str]], deadline: float) -> dict[str, tuple[int, str]]:
    """(exit code, output and errors) of each command, by its key; all of them within the deadline.

    A command that does not end in time is killed, without waiting for its end: 124 and the reason.
    """
    end = time.monotonic() + deadline
    answers: dict[str, tuple[int, str]] = {}
    running: dict[str, subprocess.Popen[bytes]] = {}
    for key, argv in commands.items():
        try:
            running[key] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:
            answers[key] = (127, str(error))
    pipes = {key: process.stdout.fileno() for key, process in running.items() if process.stdout}
    outputs, late = read_all(pipes, end)
    for key, process in running.items():
        if key in late:
            process.kill()
            answers[key] = (124, f"no answer in {deadline:g} s")
        else:
            answers[key] = (process.wait(), outputs[key].decode("utf-8", "replace"))
    return answers
