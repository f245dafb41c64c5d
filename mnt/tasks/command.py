"""Run a user's command on a host: pass its output to a sink as it comes, and return its exit code."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Protocol

from mnt.errors import HostError
from mnt.fleet import HostConnection
from mnt.fleet.shell import runs_nothing
from mnt.fleet.wire.command import ReadTimeout, RunningCommand, remaining
from mnt.tasks import bootstrap, wrapper
from mnt.tasks.wrapper import Command, Streams

# If a command has ended and a process that it started keeps its streams open, output may still be on its way.
_QUIET = 0.5  # seconds without output after which we stop waiting
_PATIENCE = 5.0  # seconds that we wait at most


class Sink(Protocol):
    """Takes the output of a host."""

    def stdout(self, data: bytes) -> None: ...

    def stderr(self, data: bytes) -> None: ...


class Feed(Protocol):
    """A standard input. Iterating waits for more input; `close`, from another thread, ends the iteration."""

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None: ...


def run_command(
    connection: HostConnection,
    command: Command,
    sink: Sink,
    *,
    stdin: Feed | None = None,
    timeout: float | None = None,
) -> int:
    """Run `command` and return its exit code, 128+N for a signal. Closes the connection at the end.

    Processes that the command leaves in the background keep running; this does not wait for them. If the
    connection ends before the command, the host ends its process group: TERM, then KILL after two seconds.

    Args:
        sink: called in this thread.
        stdin: the command's standard input, closed at the end. None: it has none.
        timeout: seconds for the command, after at most `Timeouts.start` seconds to start; None: no limit.

    Raises:
        HostError: phase `command`: it could not be started, or did not end in time; `channel` or an earlier
            phase: there is no connection.
    """
    mark = bootstrap.new_mark()
    streams = Streams(mark)

    def on_stderr(data: bytes) -> None:
        if output := streams.stderr(data):
            sink.stderr(output)

    login_line = wrapper.login_line(command)
    try:
        with connection.start(login_line, on_stderr=on_stderr) as running, ExitStack() as started:
            running.write([wrapper.opening(command, mark, with_input=stdin is not None)])
            output = _Output(running, streams, sink)
            if not output.starts(connection.timeouts.start):
                raise _not_started(connection, running, streams, command)
            output.limit(math.inf if timeout is None else timeout)
            if stdin is not None:
                started.enter_context(_leash(connection, login_line, streams.group))
                started.callback(stdin.close)  # this ends the thread that waits for more of it
                running.write([wrapper.GO])
                running.write(stdin)
                running.end_input()
            output.follow()
            return _exit_code(running, streams)
    except TimeoutError:
        name = connection.target.name
        raise HostError(name, "command", f"not done within {timeout:g} s") from None
    finally:
        connection.close()


class _Output:
    """Passes a command's output on to the sink."""

    def __init__(self, running: RunningCommand, streams: Streams, sink: Sink) -> None:
        self._running = running
        self._streams = streams
        self._sink = sink
        self._deadline = math.inf  # on time.monotonic()'s clock
        self._ended = False

    def limit(self, seconds: float) -> None:
        """Allow it this long, from now on."""
        self._deadline = time.monotonic() + seconds

    def starts(self, limit: float) -> bool:
        """Whether the command starts within `limit` seconds. Raises HostError."""
        self.limit(limit)
        try:
            return self.follow(until=lambda: self._streams.started)
        except TimeoutError:
            return False

    def follow(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Pass output on until it ends or `until()` is true; returns False if it ended.

        Raises TimeoutError, HostError.
        """
        while not until():
            data = self._next()
            if not data:
                if rest := self._streams.rest():
                    self._sink.stderr(rest)
                return False
            if output := self._streams.stdout(data):
                self._sink.stdout(output)
        return True

    def _next(self) -> bytes:
        """The next piece of output; empty at the end, even if background processes keep the streams open."""
        while True:
            if self._streams.exit_code is not None and not self._ended:
                self._ended = True
                self.limit(_PATIENCE)
            left = self._deadline - time.monotonic()
            if left <= 0 and self._ended:
                return b""
            if left <= 0:
                raise TimeoutError
            try:
                return self._running.read(min(_QUIET, left))
            except ReadTimeout:
                if self._ended:
                    return b""
                # The exit code may have arrived on standard error in the meantime.
            except HostError:
                if self._streams.exit_code is None:
                    raise
                return b""  # the command ended before the connection did


@contextmanager
def _leash(connection: HostConnection, login_line: str, group: int | None) -> Iterator[None]:
    """Guard a process group of the host: the host ends it unless the block ends without an exception.

    Raises HostError.
    """
    host, limit = connection.target.name, connection.timeouts.channel
    if group is None:
        raise HostError(host, "command", "the host has no /proc, which is needed to end the command later")
    with connection.start(login_line) as running:
        mark = bootstrap.new_mark()
        running.write([wrapper.leash_opening(mark, group)])
        answer = b""
        deadline = time.monotonic() + limit
        try:
            while mark.encode() not in answer:
                data = running.read(remaining(deadline))
                if not data:
                    raise HostError(host, "channel", "the second session ended at once")
                answer = answer[-len(mark) :] + data
        except ReadTimeout:
            raise HostError(host, "channel", f"no second session within {limit:g} s") from None
        yield
        with suppress(HostError, TimeoutError):
            running.write([wrapper.DONE])
            running.read(limit)  # its end


def _exit_code(running: RunningCommand, streams: Streams) -> int:
    code = running.exit_code if streams.exit_code is None else streams.exit_code
    if code is None:
        raise HostError(running.host, "command", "it ended, and the host did not report its exit code")
    return code


def _not_started(
    connection: HostConnection, running: RunningCommand, streams: Streams, command: Command
) -> HostError:
    """The error if the login shell, or sudo, did not run the command."""
    if not command.sudo:
        code = running.exit_code
        running.close()
        return runs_nothing(connection, code, streams.noise)
    lines = streams.noise.strip().splitlines()
    if lines and "password" in lines[-1]:
        fix = "a NOPASSWD rule in the host's sudoers(5), for the user who logs in"
        return HostError(running.host, "command", "sudo wants a password", fix=fix)
    return HostError(running.host, "command", f"sudo refuses: {lines[-1] if lines else 'no message'}")
