"""Run a command of the user's on a host: its bytes to a sink as they come, its exit code at the end."""

from __future__ import annotations

import time
from typing import Protocol

from mnt.errors import HostError
from mnt.fleet import HostConnection
from mnt.fleet.channel import ReadTimeout, RunningCommand
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
            return _exit_code(running, streams, command)
    finally:
        connection.close()


def _follow(running: RunningCommand, streams: Streams, sink: Sink, timeout: float | None) -> None:
    """Pass standard output on until nothing comes any more."""
    deadline = None if timeout is None else time.monotonic() + timeout
    ended = False
    while True:
        if streams.exit_code is not None and not ended:
            ended, deadline = True, time.monotonic() + _PATIENCE
        patience = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            data = running.read(min(_QUIET, patience) if ended and patience is not None else patience)
        except ReadTimeout:
            if ended:
                return
            if streams.exit_code is not None:
                continue
            raise HostError(running.host, "command", f"not done within {timeout:g} s") from None
        except HostError:
            if streams.exit_code is not None:  # the command's end was known before that of the connection
                return
            raise
        if not data or (ended and patience == 0):
            return
        if said := streams.stdout(data):
            sink.stdout(said)


def _exit_code(running: RunningCommand, streams: Streams, command: Command) -> int:
    if not streams.started:
        raise _refused(running, streams, command)
    code = running.exit_code if streams.exit_code is None else streams.exit_code
    if code is None:
        raise HostError(running.host, "command", "it ended, and the host did not say how")
    return code


def _refused(running: RunningCommand, streams: Streams, command: Command) -> HostError:
    """The command has not even started: sudo, or the login shell, would not."""
    lines = streams.noise.strip().splitlines()
    code = "" if running.exit_code is None else f"exit code {running.exit_code}"
    why = lines[-1] if lines else code or "not a word"
    if not command.sudo:
        return HostError(running.host, "command", f"the login shell does not run commands: {why}")
    if "password" in why:
        message, fix = "sudo wants a password", "a NOPASSWD rule of sudoers(5) for the user who logs in"
        return HostError(running.host, "command", message, fix=fix)
    return HostError(running.host, "command", f"sudo refuses: {why}")
