"""Second stage on a host: read a program from standard input, run its `main`, and report in frames.

The stub that bootstrap.py sends has read this source and the program's from standard input, and calls
`serve`. The rest of the input is a line with a length and that many bytes of JSON (the request, see
bootstrap.py), then the stream for the program in pieces, each `%08x` and that many bytes. A piece of length 0
ends the stream, which distinguishes the end of the data from the loss of the connection: standard input
itself stays open until the head has finished, and its end means that the head is gone.

Frames are written to the original standard output, in chunks of one write each of at most PIPE_BUF bytes, so
that no other writer can get into the middle of one: `MARK KIND LENGTH MORE\\n` and LENGTH bytes. Standard
output and standard input of the program, and of what it starts, are standard error and /dev/null.

Runs on the host; standard library only, Python 3.8 and newer.
"""

from __future__ import annotations

import io
import json
import os
import select
import signal
import sys
import threading
import types
from types import FrameType
from typing import Any, BinaryIO, NoReturn

_CHUNK = 4000  # bytes of data in a chunk; with its header less than PIPE_BUF (4096 on Linux)
_GRACE = 5.0  # seconds that a program has to clean up after the head is gone
_HEAD_GONE = 98  # the exit status that makes boot.sh give up
_LOST = "the connection to the head is lost"
_TRACEBACK_KEPT = 1 << 15, 1 << 11  # characters: its end; fewer if the frame would be too large
_MESSAGE_KEPT = 1 << 10  # characters: its beginning


class Frames:
    """Writes frames; safe to use from several threads."""

    def __init__(self, fd: int, mark: str, limit: int, error_limit: int) -> None:
        self._fd = fd
        self._mark = mark
        self._limit = limit  # bytes of one frame
        self._error_limit = error_limit
        self._lock = threading.Lock()

    def send(self, kind: str, value: Any) -> None:
        """Send `value` as JSON. Raises TypeError or ValueError if it is not JSON, or too large."""
        data = json.dumps(value, allow_nan=False).encode()
        if len(data) > self._limit and kind != "error":
            raise ValueError(f"{kind} of {len(data)} bytes: more than the {self._limit} allowed")
        with self._lock:
            for start in range(0, len(data), _CHUNK):
                part = data[start : start + _CHUNK]
                more = start + _CHUNK < len(data)
                self._write(f"{self._mark} {kind} {len(part)} {more:d}\n".encode() + part)

    def fail(self, error: BaseException) -> None:
        """Send an exception, as much of it as the head takes."""
        self.send("error", _failure(error, self._error_limit))

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fd, data) :]


class Stream(io.RawIOBase):
    """The bytes that the head streams to the program. Raises ConnectionError if the head is gone.

    The program hears no more of it: the signal that says the same does not disturb it as it cleans up.
    """

    def __init__(self, feed: io.BufferedReader) -> None:
        self._feed = feed
        self._left = 0  # bytes left of the current piece
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left == 0 and not self._ended:
            size = self._feed.read(8)
            if len(size) < 8:
                raise _lost()
            self._left = int(size, 16)
            self._ended = self._left == 0
        if self._ended or not len(buffer):
            return 0
        count = self._feed.readinto1(memoryview(buffer)[: self._left])
        if not count:
            raise _lost()
        self._left -= count
        return count


class Source:
    """The loader of a module, from which tracebacks get their lines."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get_source(self, name: str) -> str:
        return self._text


class Group:
    """A process group for the program and what it starts; a process that calls setsid leaves it."""

    def __init__(self) -> None:
        self._outer = os.getpgrp()  # 0: outside the PID namespace of a container
        self._own = os.getpid()

    def enter(self) -> None:
        if self._outer != self._own:
            os.setpgid(0, 0)

    def terminate(self) -> None:
        if self._own == 1:  # of a container; killpg(1) is kill(-1), which spares its caller
            os.kill(1, signal.SIGTERM)
        os.killpg(self._own, signal.SIGTERM)
        os.killpg(self._own, signal.SIGCONT)  # for what was stopped

    def sweep(self) -> None:
        """Kill all processes in the group except this one, which leaves the group first.

        A process that cannot leave is the first of its container: when it ends, all others end too.
        """
        if self._outer in (0, self._own):
            return
        try:
            os.setpgid(0, self._outer)
            os.killpg(self._own, signal.SIGKILL)
        except OSError:  # nothing is left
            pass


def _exit_on_signal(signum: int, frame: FrameType | None) -> NoReturn:
    _told_once()
    raise SystemExit(128 + signum)


def _lost() -> ConnectionError:
    if threading.current_thread() is threading.main_thread():
        _told_once()
    return ConnectionError(_LOST)


def _told_once() -> None:
    """Further signals to end have no effect: a program that cleans up is not interrupted again.

    A handler, not SIG_IGN, which the commands that the program still runs would inherit.
    """
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda *_: None)


def _reset_signals() -> None:
    """Reset signals that the login shell may ignore, and let a program clean up on SIGTERM."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    signal.signal(signal.SIGHUP, _exit_on_signal)


def _watch(fd: int, group: Group, over: threading.Event) -> None:
    """Wait until the head hangs up; then end the program: SIGTERM, a moment to clean up, SIGKILL."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)  # no POLLIN: input that the program has not read does not matter
    poll.poll()
    if over.is_set():
        return
    group.terminate()
    over.wait(_GRACE)
    group.sweep()
    os._exit(_HEAD_GONE)


def _load(modules: list[tuple[str, str]]) -> None:
    """Make modules, and run them in order."""
    for name, source in modules:
        module = _module(name)
        file = name.replace(".", "/") + ".py"
        vars(module).update(__file__=file, __loader__=Source(source))
        exec(compile(source, file, "exec"), module.__dict__)  # noqa: S102 - runs what the head has sent: its purpose


def _module(name: str) -> types.ModuleType:
    """A new module, as an attribute of its package, which is made if it does not exist."""
    module = sys.modules[name] = types.ModuleType(name)
    parent, _, child = name.rpartition(".")
    if parent:
        package = sys.modules.get(parent) or _module(parent)
        vars(package).update({"__path__": [], child: module})
    return module


def _failure(error: BaseException, limit: int) -> dict[str, str]:
    import traceback

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    summary = traceback.format_exception_only(type(error), error)[-1].strip()[:_MESSAGE_KEPT]
    failures = [{"error": summary, "traceback": text[-kept:]} for kept in _TRACEBACK_KEPT]
    return next((failure for failure in failures if len(json.dumps(failure)) <= limit), failures[-1])


def _run(
    name: str, modules: list[tuple[str, str]], args: dict[str, Any], frames: Frames, stdin: BinaryIO
) -> Any:
    """Run the program. Its answer, or the exception that it raised."""
    sys.argv = [f"mnt/remote/{name.replace('.', '/')}.py"]
    try:
        _load(modules)
        program: Any = sys.modules[f"mnt.remote.{name}"]
        return program.main(args, lambda frame: frames.send("frame", frame), stdin)
    except BaseException as error:  # noqa: BLE001 - the head reports any error
        return error


def serve(modules: list[tuple[str, str]], feed: io.BufferedReader, why: str, python: list[str]) -> NoReturn:
    """Run the requested program, and exit with 0 after its answer, or with 98 if the head is gone.

    Args:
        modules: of the program, as (full name, source), each after those that it imports.
        feed: standard input, binary and buffered, at the request; on another descriptor.
        why: why the configured interpreter does not run; empty if it does.
        python: the words that started this interpreter.
    """
    request = json.loads(feed.read(int(feed.readline() or os._exit(_HEAD_GONE))))
    frames = Frames(os.dup(1), request["mark"], request["limit"], request["error_limit"])
    os.dup2(2, 1)
    group, over = Group(), threading.Event()
    group.enter()
    threading.Thread(target=_watch, args=(feed.fileno(), group, over), daemon=True).start()
    _reset_signals()
    frames.send("hello", {"pid": os.getpid(), "version": sys.version.split()[0]})
    args = dict(request["args"], _boot={"python": python, "configured": not why, "why": why})
    stdin = io.BufferedReader(Stream(feed), 1 << 16)
    answer = _run(request["name"], modules, args, frames, stdin)
    over.set()
    group.sweep()  # before the answer, so that nothing is left when it arrives
    try:
        try:
            if isinstance(answer, BaseException):
                frames.fail(answer)
            else:
                frames.send("answer", answer)
        except (TypeError, ValueError) as error:
            frames.fail(error)
    except OSError:  # the head no longer reads
        os._exit(_HEAD_GONE)
    sys.stdout.flush()
    os._exit(0)
