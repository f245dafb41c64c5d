"""Run functions and commands that may hang, in child processes. Runs on a host: Python 3.8."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


def run_in_children(jobs: Mapping[str, Callable[[], Any]], deadline: float) -> dict[str, Any]:
    """The results of all jobs, converted by JSON, in their order; None if a job died, or did not end in time.

    All jobs run at once, and take at most `deadline` seconds: a dead file server blocks only the child that
    asked it. That child ends now, or when its file server comes back: nothing waits for it.
    """
    end = time.monotonic() + deadline
    children = {name: _fork(job) for name, job in jobs.items()}
    output, _ = read_all({name: descriptor for name, (_, descriptor) in children.items()}, end)
    for pid, descriptor in children.values():
        os.close(descriptor)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, os.WNOHANG)
    return {name: json.loads(text) if text.endswith(b"\n") else None for name, text in output.items()}


def read_all(pipes: Mapping[str, int], end: float) -> tuple[dict[str, bytes], set[str]]:
    """The data from each pipe until it is closed, and the names of the pipes that are still open at `end`.

    Args:
        end: on time.monotonic()'s clock.
    """
    output = dict.fromkeys(pipes, b"")
    name_of = {descriptor: name for name, descriptor in pipes.items()}
    while name_of:
        ready, _, _ = select.select(list(name_of), [], [], max(0.0, end - time.monotonic()))
        if not ready:
            break
        for descriptor in ready:
            data = os.read(descriptor, 1 << 16)
            output[name_of[descriptor]] += data
            if not data:
                del name_of[descriptor]
    return output, set(name_of.values())


def _fork(job: Callable[[], Any]) -> tuple[int, int]:
    """Start a child that does the job; its pid, and the descriptor from which its answer comes, a line."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # Only the pipe stays open: a child that hangs must not keep the SSH session's streams open.
            null = os.open(os.devnull, os.O_RDWR)
            for source, target in ((null, 0), (null, 1), (null, 2), (writing, 3)):
                os.dup2(source, target)
            os.closerange(4, 1024)
            with open(3, "wb") as answer:
                answer.write(json.dumps(job()).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writing)
    return pid, reading


def find(program: str) -> str | None:
    """The path of a program; a non-interactive PATH may lack some of these directories."""
    directories = [*os.environ.get("PATH", "").split(":"), "/usr/bin", "/usr/local/bin", "/usr/sbin"]
    for directory in filter(None, directories):
        path = os.path.join(directory, program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


KILLED = 124  # the exit status of timeout(1)


class Ran(NamedTuple):
    """A command that has ended, or was killed because it did not end in time (KILLED)."""

    code: int
    output: str
    errors: str  # and why it could not be started, or was killed


def run_all(commands: Mapping[str, Sequence[str]], deadline: float) -> dict[str, tuple[int, str]]:
    """As `run_apart`, but the errors are at the end of the output."""
    return {key: (ran.code, ran.output + ran.errors) for key, ran in run_apart(commands, deadline).items()}


def run_apart(commands: Mapping[str, Sequence[str]], deadline: float) -> dict[str, Ran]:
    """Run all commands at once, within the deadline.

    A command that does not end in time is killed, without waiting for its end; what it said counts.
    """
    end = time.monotonic() + deadline
    answers: dict[str, Ran] = {}
    running: dict[str, subprocess.Popen[bytes]] = {}
    for key, argv in commands.items():
        try:
            running[key] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            answers[key] = Ran(127, "", str(error))
    pipes = {}
    for key, process in running.items():
        if process.stdout and process.stderr:
            pipes[f"{key} output"], pipes[f"{key} errors"] = process.stdout.fileno(), process.stderr.fileno()
    outputs, late = read_all(pipes, end)
    for key, process in running.items():
        output, errors = (
            outputs[f"{key} {kind}"].decode("utf-8", "replace") for kind in ("output", "errors")
        )
        if late.isdisjoint((f"{key} output", f"{key} errors")):
            answers[key] = Ran(process.wait(), output, errors)
        else:
            process.kill()
            answers[key] = Ran(KILLED, output, f"{errors}no answer in {deadline:g} s")
    return answers
