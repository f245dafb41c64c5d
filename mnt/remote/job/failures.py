"""Why a process failed, and what its own words tell of that, whatever started it. Pure, but for `tail`."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import asdict, dataclass
from typing import Any

TRACEBACK_BYTES = 8 * 1024
MESSAGE_CHARACTERS = 500
TAIL_BYTES = 256 * 1024

LINE_PREFIX = re.compile(r"^(?:\[\w+\]:? ?)+")  # "[rank1]: " of torch's excepthook, "[default1]:" of --tee
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:: |$)")

# What a process says that dies of another's death. Plain "Connection reset by peer" is no sign of it: it may
# be the reading of the data that failed.
VICTIM = re.compile(
    r"gloo.*(?:Connection closed by peer|Connection reset by peer|Connection refused|Broken pipe|Timed out)"
    r"|gloo.*(?:Read|Write) error|Gloo connectFullMesh failed"
    r"|ncclRemoteError|NCCL communicator was aborted|remote process exited or there was a network error"
    r"|Watchdog caught collective operation timeout|collective operations have failed or timed out"
    r"|DistStoreError|DistNetworkError|TCPStore.*(?:reset by peer|Broken pipe)|failed to recv, got 0 bytes"
    r"|SignalException",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Failure:
    """See `mnt.tasks.job.Failure`, which is this as a document."""

    rank: int | None
    local_rank: int | None
    exit_code: int | None
    signal: str | None
    message: str
    traceback: str | None
    time: float | None
    victim: bool

    def document(self) -> dict[str, Any]:
        return asdict(self)


def last_exception(stderr: str) -> tuple[str, str] | None:
    """The last Python exception in a process's stderr: its line, and the whole traceback."""
    lines = [LINE_PREFIX.sub("", line) for line in stderr.splitlines()]
    starts = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    if not starts:
        return None
    start = starts[-1]
    for i in range(start + 1, len(lines)):
        if _EXCEPTION.match(lines[i]):
            return lines[i], "\n".join(lines[start : i + 1])
    return None


def exit_code_of(code: int) -> int:
    """A code of Python's subprocess as a shell has it: 128+N for signal N."""
    return code if code >= 0 else 128 - code


def signal_of(code: int) -> str | None:
    """ "SIGKILL" for -9; None for a process that exited."""
    if code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def failure_of_program(output: str, code: int) -> Failure:
    """A program that failed itself, by the end of its output: the last exception, or its last words."""
    exception = last_exception(output)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = exception[0] if exception else lines[-1] if lines else ""
    message = f"killed by {signal_of(code)}" if code < 0 else said or f"exit code {code}"
    return Failure(
        rank=None,
        local_rank=None,
        exit_code=exit_code_of(code),
        signal=signal_of(code),
        message=message[:MESSAGE_CHARACTERS],
        traceback=exception[1][-TRACEBACK_BYTES:] if exception else None,
        time=None,
        victim=code == -signal.SIGTERM or bool(VICTIM.search(message)),
    )


def tail(path: str, size: int = TAIL_BYTES) -> str:
    """The last `size` bytes of a file as text; empty where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size).decode("utf-8", "replace")
    except OSError:
        return ""
