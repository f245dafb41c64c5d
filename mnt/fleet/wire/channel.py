"""A command on a host over one SSH channel: it reads both streams, and writes standard input meanwhile.

Paramiko can only read one stream at a time, which deadlocks as soon as a command fills the other. Here one
thread waits for any event on the channel: output, errors, the exit status, its end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import paramiko

from mnt.errors import HostError
from mnt.fleet.wire.command import ReadTimeout, RunningCommand, Writer
from mnt.remote.common.files import strerror

_READ = 1 << 16  # bytes
_ERRORS_KEPT = 1 << 16  # bytes of the end of standard error that are kept
_LINGER = 0.5  # seconds for the rest of the output, if another process still has stdout open at the end
_MOST_STATUS = 255  # of a process, or 128+N for a signal

CHANNEL_ERRORS = (paramiko.SSHException, EOFError, OSError)


class _Wake(threading.Event):
    """Set by any event on a channel. Paramiko's pipes call `clear` when they are empty; it does nothing."""

    def clear(self) -> None:
        pass

    def rearm(self) -> None:
        super().clear()


class _StatusEvent(threading.Event):
    """Replaces `Channel.status_event`, so that the exit status wakes the reader too."""

    def __init__(self, wake: _Wake) -> None:
        super().__init__()
        self._wake = wake

    def set(self) -> None:
        super().set()
        self._wake.set()


class _Reply(threading.Event):
    """Replaces `Channel.event`: without it, paramiko waits for the answer to a request without a limit."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self._limit = limit

    def wait(self, timeout: float | None = None) -> bool:
        """Raises TimeoutError in place of returning False."""
        if super().wait(self._limit if timeout is None else timeout):
            return True
        raise TimeoutError(f"no answer within {self._limit:g} s")


def open_session(transport: paramiko.Transport, limit: float) -> paramiko.Channel:
    """A new session channel. Opening it, and each request, may take `limit` seconds.

    Raises one of CHANNEL_ERRORS; ChannelException if the host allows no further session.
    """
    session = transport.open_session(timeout=limit)
    session.event = _Reply(limit)
    return session


class RemoteCommand(RunningCommand):
    """A command over a channel.

    Args:
        host: the host's name in messages.
        session: a new channel, from `open_session`.
        command: for the login shell.
        on_stderr: called with each piece of standard error, in the thread that reads.

    Raises HostError: phase `channel`.
    """

    def __init__(
        self,
        host: str,
        session: paramiko.Channel,
        command: str,
        *,
        on_stderr: Callable[[bytes], object] | None = None,
    ) -> None:
        self.host = host
        self._wake = _Wake()
        self._errors = bytearray()
        self._on_stderr = on_stderr
        self._ended_at: float | None = None
        session.in_buffer.set_event(self._wake)
        session.in_stderr_buffer.set_event(self._wake)
        session.status_event = _StatusEvent(self._wake)
        self._channel = session
        self._transport = session.get_transport()
        self._writer = Writer(self._send, self._end_input, self._wake.set)
        try:
            session.exec_command(command)
        except CHANNEL_ERRORS as error:
            self.close()
            if not self._transport.is_active():
                raise self._lost(error) from error
            raise HostError(self.host, "channel", f"the command was refused: {cause_of(error)}") from error

    def close(self) -> None:
        with contextlib.suppress(*CHANNEL_ERRORS):  # the loss of the connection has closed it
            self._channel.close()
        self._writer.close(1.0)

    @property
    def stderr(self) -> str:
        """The end of standard error, as far as it was read."""
        return self._errors.decode(errors="replace")

    @property
    def exit_code(self) -> int | None:
        """As RunningCommand's. Raises HostError for a status that no process has."""
        status = self._channel.exit_status
        if not self._channel.status_event.is_set() or status < 0:
            return None
        if status > _MOST_STATUS:
            raise HostError(
                self.host, "channel", f"no process has the exit status {status}, which it reports"
            )
        return status

    def _send(self, data: bytes) -> None:
        """Raises OSError; `read` then says why the connection is lost."""
        try:
            self._channel.sendall(data)
        except (paramiko.SSHException, EOFError) as error:
            raise OSError(str(error)) from None

    def _end_input(self) -> None:
        with contextlib.suppress(*CHANNEL_ERRORS):
            self._channel.shutdown_write()

    def read(self, timeout: float | None = None) -> bytes:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._wake.rearm()
            self._take_errors()
            self._writer.check()
            if self._channel.recv_ready():
                return self._channel.recv(_READ)
            if self._at_end():
                return b""
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise ReadTimeout
            if not self._channel.recv_stderr_ready():
                self._wake.wait(self._next_look(now, deadline))

    def _take_errors(self) -> None:
        """Read one piece only, or a command with endless errors would keep the reader here."""
        if self._channel.recv_stderr_ready():
            data = self._channel.recv_stderr(_READ)
            self._errors += data
            del self._errors[:-_ERRORS_KEPT]
            if self._on_stderr is not None:
                self._on_stderr(data)

    def _at_end(self) -> bool:
        """Whether no more output can come. `_ready` must be called last: output may come in between."""
        channel = self._channel
        if channel.closed:
            if self.exit_code is None and not self._transport.is_active():
                raise self._lost()
            return not self._ready()
        if not channel.status_event.is_set():
            return False
        if channel.eof_received:
            return not self._ready()
        self._ended_at = self._ended_at or time.monotonic()
        return time.monotonic() - self._ended_at >= _LINGER and not self._ready()

    def _lost(self, error: Exception | None = None) -> HostError:
        """The error for a connection that ended while it was in use, with paramiko's reason.

        Args:
            error: what a call of paramiko raised: the transport's own error, or that the channel is closed.
        """
        lost = getattr(self._transport.packetizer, "lost", None)
        error = lost or self._transport.saved_exception or error
        return HostError(self.host, "channel", "connection lost" + (f": {cause_of(error)}" if error else ""))

    def _ready(self) -> bool:
        return self._channel.recv_ready() or self._channel.recv_stderr_ready()

    def _next_look(self, now: float, deadline: float | None) -> float | None:
        """Seconds until the next deadline; None: there is none."""
        due = [] if deadline is None else [deadline]
        if self._ended_at is not None:
            due.append(self._ended_at + _LINGER)
        return max(0.0, min(due) - now) if due else None


def cause_of(error: BaseException) -> str:
    """A message for one of CHANNEL_ERRORS."""
    return "closed by the host" if isinstance(error, EOFError) else strerror(error)
