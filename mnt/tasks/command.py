"""Run a command of the user's on a host: its bytes to a sink as they come, its exit code at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Protocol

from mnt.errors import HostError
from mnt.fleet import HostConnection
from mnt.fleet.shell import runs_nothing
from mnt.fleet.wire.command import ReadTimeout, RunningCommand
from mnt.tasks import bootstrap, wrapper
from mnt.tasks.wrapper import Command, Streams

# A command has ended, and something that it started holds its streams: what is on its way still counts.
_QUIET = 0.5  # seconds of silence that end the waiting
_PATIENCE = 5.0  # seconds that it lasts at most


class Sink(Protocol):
    """Where a host's output goes."""

    def stdout(self, data: bytes) -> None: ...

    def stderr(self, data: bytes) -> None: ...


class Feed(Protocol):
    """A standard input: iterating waits for more of it; `close`, from another thread, ends that."""

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
    """Run `command` and return its exit code, 128+N for a signal. The connection is closed in the end.

    What it leaves running in the background stays, and is not waited for. When the connection ends before
    the command does, the host ends it: TERM, and KILL after two seconds, to its process group.

    Args:
        sink: called in this thread.
        stdin: what its standard input is; closed in the end. None: it has none.
        timeout: seconds for the command, which has `Timeouts.channel` more to start; None: no limit.

    Raises:
        HostError: phase `command`: it could not be started, or was not done in time; `channel` or an earlier
            one for want of a connection.
    """
    mark = bootstrap.new_mark()
    streams = Streams(mark)

    def on_stderr(data: bytes) -> None:
        if said := streams.stderr(data):
            sink.stderr(said)

    login_line = wrapper.login_line(command)
    try:
        with connection.start(login_line, on_stderr=on_stderr) as running, ExitStack() as started:
            running.write([wrapper.opening(command, mark, with_input=stdin is not None)])
            output = _Output(running, streams, sink)
            if timeout is not None:
                output.limit(timeout + connection.timeouts.channel)
            if not output.follow(until=lambda: streams.started):
                raise _not_started(connection, running, streams, command)
            if timeout is not None:
                output.limit(timeout)
            if stdin is not None:
                started.enter_context(_Leash(connection, login_line, streams.group))
                started.callback(stdin.close)  # the thread that waits for more of it ends
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
    """A command's output on its way to the sink."""

    def __init__(self, running: RunningCommand, streams: Streams, sink: Sink) -> None:
        self._running = running
        self._streams = streams
        self._sink = sink
        self._deadline = math.inf  # on time.monotonic()'s clock
        self._ended = False

    def limit(self, seconds: float) -> None:
        """How long it may last, from now on."""
        self._deadline = time.monotonic() + seconds

    def follow(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Pass it on until nothing comes any more, or `until` holds; whether that is so.

        Raises TimeoutError, HostError.
        """
        while not until():
            data = self._next()
            if not data:
                if rest := self._streams.rest():
                    self._sink.stderr(rest)
                return False
            if said := self._streams.stdout(data):
                self._sink.stdout(said)
        return True

    def _next(self) -> bytes:
        """The next piece; empty at the end, which does not wait for what the command has left running."""
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
                # The exit code may have come meanwhile, on standard error.
            except HostError:
                if self._streams.exit_code is None:
                    raise
                return b""  # the command had ended before the connection did


class _Leash:
    """Holds a process group of the host: it is ended unless this is left without an exception."""

    def __init__(self, connection: HostConnection, login_line: str, group: int | None) -> None:
        """Raises HostError."""
        host = connection.target.name
        if group is None:
            raise HostError(host, "command", "the host has no /proc, by which to end the command later")
        self._limit = connection.timeouts.channel
        self._running = connection.start(login_line)
        try:
            self._hold(group)
        except BaseException as error:
            self._running.close()
            if isinstance(error, ReadTimeout):
                message = f"no second session within {self._limit:g} s"
                raise HostError(host, "channel", message) from None
            raise

    def _hold(self, group: int) -> None:
        mark = bootstrap.new_mark()
        self._running.write([wrapper.leash_opening(mark, group)])
        said = b""
        while mark.encode() not in said:
            data = self._running.read(self._limit)
            if not data:
                raise HostError(self._running.host, "channel", "the second session ended at once")
            said += data

    def __enter__(self) -> _Leash:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._running, suppress(HostError, TimeoutError):
            if kind is None:
                self._running.write([wrapper.DONE])
                self._running.read(self._limit)  # its end


def _exit_code(running: RunningCommand, streams: Streams) -> int:
    code = running.exit_code if streams.exit_code is None else streams.exit_code
    if code is None:
        raise HostError(running.host, "command", "it ended, and the host did not say how")
    return code


def _not_started(
    connection: HostConnection, running: RunningCommand, streams: Streams, command: Command
) -> HostError:
    """The login shell, or sudo, has not let it through."""
    if command.sudo:
        return _sudo_refused(running.host, streams.noise)
    return runs_nothing(connection, running.exit_code, streams.noise)


def _sudo_refused(host: str, said: str) -> HostError:
    lines = said.strip().splitlines()
    if lines and "password" in lines[-1]:
        fix = "a NOPASSWD rule in the host's sudoers(5), for the user who logs in"
        return HostError(host, "command", "sudo wants a password", fix=fix)
    return HostError(host, "command", f"sudo refuses: {lines[-1] if lines else 'it said nothing'}")
