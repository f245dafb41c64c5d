"""Run a command of the user's on a host: its bytes to a sink as they come, its exit code at the end."""

from __future__ import annotations

import math
import time
from typing import Protocol

from mnt.errors import HostError
from mnt.fleet import HostConnection
from mnt.fleet.channel import ReadTimeout, RunningCommand
from mnt.fleet.shell import runs_nothing
from mnt.remote import bootstrap
from mnt.run import wrapper
from mnt.run.command import Command
from mnt.run.feed import Feed
from mnt.run.wrapper import Streams

# A command has ended, and something that it started holds its streams: what is on its way still counts.
_QUIET = 0.5  # seconds of silence that end the waiting
_PATIENCE = 5.0  # seconds that it lasts at most


class Sink(Protocol):
    """Where a host's output goes."""

    def stdout(self, data: bytes) -> None: ...

    def stderr(self, data: bytes) -> None: ...


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
        timeout: seconds from the login on; None: as long as it takes.

    Raises:
        HostError: phase `command`: it could not be started, or was not done in time; `channel` or an earlier
            one for want of a connection.
    """
    mark = bootstrap.new_mark()
    streams = Streams(mark)

    def on_stderr(data: bytes) -> None:
        if said := streams.stderr(data):
            sink.stderr(said)

    try:
        with connection.start(wrapper.login_line(command), on_stderr=on_stderr) as running:
            running.write([wrapper.opening(command, mark, with_input=stdin is not None)])
            if stdin is not None:
                running.write(wrapper.pieces(stdin))
            try:
                _follow(running, streams, sink, timeout)
            finally:
                if stdin is not None:
                    stdin.close()  # the thread that waits for more of it ends
            if rest := streams.rest():
                sink.stderr(rest)
            return _exit_code(connection, running, streams, command)
    finally:
        connection.close()


def _follow(running: RunningCommand, streams: Streams, sink: Sink, timeout: float | None) -> None:
    """Pass standard output on until nothing comes any more."""
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    ended = False
    while True:
        if streams.exit_code is not None and not ended:
            ended, deadline = True, time.monotonic() + _PATIENCE
        left = deadline - time.monotonic()
        if left <= 0 and not ended:
            raise HostError(running.host, "command", f"not done within {timeout:g} s")
        try:
            data = running.read(min(_QUIET, left)) if left > 0 else b""
        except ReadTimeout:
            if ended:
                return
            continue  # the exit code may have come meanwhile, on standard error
        except HostError:
            if streams.exit_code is not None:  # the command had ended before the connection did
                return
            raise
        if not data:
            return
        if said := streams.stdout(data):
            sink.stdout(said)


def _exit_code(
    connection: HostConnection, running: RunningCommand, streams: Streams, command: Command
) -> int:
    if not streams.started:
        if command.sudo:
            raise _sudo_refused(running.host, streams.noise)
        raise runs_nothing(connection, running.exit_code, streams.noise)
    code = running.exit_code if streams.exit_code is None else streams.exit_code
    if code is None:
        raise HostError(running.host, "command", "it ended, and the host did not say how")
    return code


def _sudo_refused(host: str, said: str) -> HostError:
    lines = said.strip().splitlines()
    if lines and "password" in lines[-1]:
        fix = "a NOPASSWD rule in the host's sudoers(5), for the user who logs in"
        return HostError(host, "command", "sudo wants a password", fix=fix)
    return HostError(host, "command", f"sudo refuses: {lines[-1] if lines else 'it said nothing'}")
