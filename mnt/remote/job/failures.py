"""Why a process failed, from its output, whatever started it. Pure, except for `tail`."""

from __future__ import annotations

import os
import re
import signal
from typing import BinaryIO, TypedDict

from mnt.remote.common.forms import CALENDAR_END

TRACEBACK_BYTES = 8 * 1024
MESSAGE_CHARACTERS = 500
TAIL_BYTES = 256 * 1024
_LINE_CHARACTERS = 2000  # of each line that VICTIM reads: its time grows with the square

LINE_PREFIX = re.compile(r"^(?:\[\w+\]:? ?)+")  # "[rank1]: " of torch's excepthook, "[default1]:" of --tee
# Messages and warnings of torch's C++ code ("[W1127 22:37:45.1 socket.cpp:764] ..") and of Python explain no
# exit code. A line of source code follows Python's, with an indent.
_NOTICE = re.compile(r"\[?[IW]\d{4} [\d:.]+ |\S+:\d+: \w*Warning: ")
# The caching allocator (torch 2.1 and newer, CUDACachingAllocator.cpp); its figures and its advice follow.
_OUT_OF_MEMORY = re.compile(
    r"(?P<what>.{0,80}out of memory)\. Tried to allocate (?P<size>[\d.]+ \w+)\."
    r"(?: GPU (?P<gpu>\d+) has a total capacity of (?P<total>[\d.]+ \w+)"
    r" of which (?P<free>[\d.]+ \w+) is free\.)?"
)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:: |$)")

# The output of a process that fails because another one has ended. A plain "Connection reset by peer" does
# not count: it may have failed while reading data.
_VICTIM = re.compile(
    r"Gloo connectFullMesh failed"
    r"|ncclRemoteError|NCCL communicator was aborted|remote process exited or there was a network error"
    r"|Watchdog caught collective operation timeout|collective operations have failed or timed out"
    r"|DistStoreError|failed to recv, got 0 bytes|SignalException",
    re.IGNORECASE,
)
# The same, after "gloo" or "tcpstore" in one line of lower case.
_GLOO = re.compile(
    "connection closed by peer|connection reset by peer|connection refused|broken pipe|timed out"
    "|(?:read|write) error"
)
_STORE = re.compile("reset by peer|broken pipe")


class Failure(TypedDict):
    """Why a node's part of a job failed, as far as the node itself knows."""

    rank: int | None  # global rank of the first process that failed
    local_rank: int | None
    exit_code: int | None  # of that process; 128+N for a signal; None: unknown
    signal: str | None  # "SIGKILL"
    message: str  # one line: the last line of the exception, or of torchrun's output
    traceback: str | None  # its end, at most 8 KiB
    time: float | None  # epoch seconds by the host's clock, best estimate
    victim: bool  # it failed because another had ended: SIGTERM, closed connection, timeout of a collective


def make_failure(
    message: str,
    code: int | None = None,
    *,
    traceback: str | None = None,
    stderr: str = "",
    rank: int | None = None,
    local_rank: int | None = None,
    time: float | None = None,
) -> Failure:
    """The failure of a process, or of a node.

    Args:
        code: of the process, as Python's subprocess has it, -N for a signal; None: no process has failed.
        stderr: the end of its output. NCCL's watchdog aborts a process whose collective failed, and writes
            the reason there.
    """
    words = message + stderr if code == -signal.SIGABRT else message
    words = "\n".join(line[:_LINE_CHARACTERS] for line in words.splitlines())
    return {
        "rank": rank,
        "local_rank": local_rank,
        "exit_code": None if code is None else exit_code_of(code),
        "signal": None if code is None else signal_of(code),
        "message": _readable(_one_sentence(message)[:MESSAGE_CHARACTERS]),
        "traceback": None if traceback is None else _readable(traceback[-TRACEBACK_BYTES:]),
        "time": time if time is not None and 0 <= time < CALENDAR_END else None,
        "victim": code is not None and (code == -signal.SIGTERM or _lost_others(words)),
    }


def _one_sentence(message: str) -> str:
    """The message, or what matters of the paragraph that torch writes when a GPU's memory is full."""
    found = _OUT_OF_MEMORY.match(message)
    if found is None:
        return message
    where = "; {free} of {total} on GPU {gpu} are free".format(**found.groupdict()) if found["gpu"] else ""
    return f"{found['what']}: tried to allocate {found['size']}{where}"


def last_words(output: str) -> str:
    """The last line that may say why a process has ended, without its prefix; empty if there is none."""
    lines = [LINE_PREFIX.sub("", line) for line in output.splitlines() if line.strip()]
    for above, line in zip(reversed(["", *lines[:-1]]), reversed(lines)):
        of_notice = line[:1].isspace() and _NOTICE.match(above)
        if line.strip() and not _NOTICE.match(line) and not of_notice:
            return line.strip()
    return ""


def _readable(text: str) -> str:
    """The text with `?` for surrogates, which a job can write as JSON, and nothing can encode."""
    return text.encode("utf-8", "replace").decode()


def _lost_others(words: str) -> bool:
    """Whether the output of a process says that another one has ended."""
    return _VICTIM.search(words) is not None or any(map(_lost_peer, words.lower().split("\n")))


def _lost_peer(line: str) -> bool:
    # Without `.*` in an expression: output of one long line would take quadratic time.
    after_gloo, after_store = line.partition("gloo")[2], line.partition("tcpstore")[2]
    if _GLOO.search(after_gloo) or _STORE.search(after_store):
        return True
    _, network, rest = line.rpartition("distnetworkerror")
    return bool(network) and "eaddrinuse" not in rest


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


def how_it_ended(rank: int, code: int, stderr: str) -> str:
    """How a rank has ended that has shown no exception, with its last line if that says why.

    Args:
        code: as Python's subprocess has it, -N for a signal.
        stderr: the end of its output.
    """
    name = signal_of(code)
    how = f"exited with code {code}" if name is None else f"was killed by {name}"
    # Other signals come from outside: the process's output does not explain them.
    words = last_words(stderr) if name in (None, "SIGABRT") else ""
    return f"rank {rank} {how}: {words}" if words else f"rank {rank} {how}"


def exit_code_of(code: int) -> int:
    """The exit code as in a shell, 128+N for signal N, from that of Python's subprocess."""
    return min(code if code >= 0 else 128 - code, 255)


def signal_of(code: int) -> str | None:
    """ "SIGKILL" for -9; None for a process that exited."""
    if code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def failure_of_program(output: str, code: int) -> Failure:
    """The failure of the engine itself, from the end of its output: the last exception, or the last line."""
    exception = last_exception(output)
    last_line = exception[0] if exception else last_words(output)
    message = f"killed by {signal_of(code)}" if code < 0 else last_line or f"exit code {code}"
    return make_failure(message, code, traceback=exception[1] if exception else None)


def tail(file: BinaryIO, size: int = TAIL_BYTES) -> str:
    """The last `size` bytes of a file as text. Raises OSError."""
    file.seek(max(0, os.fstat(file.fileno()).st_size - size))
    return file.read(size).decode("utf-8", "replace")
