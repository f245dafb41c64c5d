"""What one run of a command takes."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from machine import environment


class Run(NamedTuple):
    seconds: float  # wall time, the start of the process included
    cpu: float  # seconds, user and system, of it and its children
    memory: float  # MiB, the peak of the largest process

    def rounded(self) -> dict[str, float]:
        return {
            "seconds": round(self.seconds, 2),
            "cpu": round(self.cpu, 2),
            "memory": round(self.memory),
        }


def run(
    argv: Sequence[str], more: Mapping[str, str] | None = None, *, cwd: Path | None = None, code: int = 0
) -> Run:
    """Raises SystemExit where it ends with another code: then its time means nothing."""
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=environment(more or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != code:
            output.seek(0)
            sys.exit(f"{argv[0]} failed: {output.read().decode(errors='replace')[-2000:]}")
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def in_turn(runs: Mapping[str, Callable[[], Run]], rounds: int) -> dict[str, Run]:
    """The median of each; they take turns, so that a busy minute of the machine's hits them all."""
    found = [{name: start() for name, start in runs.items()} for _ in range(rounds)]
    return {name: median([each[name] for each in found]) for name in runs}


def median(runs: Sequence[Run]) -> Run:
    return Run(*(statistics.median(values) for values in zip(*runs, strict=True)))
