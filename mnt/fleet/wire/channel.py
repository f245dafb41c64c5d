"""A command on a host over one SSH channel: both streams drained, standard input streamed, under a deadline.

Paramiko offers blocking reads of one stream at a time, which deadlocks as soon as a command fills the other.
Here one thread waits for whatever happens first on the channel: output, errors, the exit status, its end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import paramiko

from mnt.errors import HostError, strerror
from mnt.fleet.wire.command import ReadTimeout, RunningCommand, Writer

_READ = 1 << 16  # bytes
_ERRORS_KEPT = 1 << 16  # bytes of standard error that are kept: its end
_LINGER = 0.5  # seconds for the rest of the output, once the command has ended but something holds its stdout

CHANNEL_ERRORS = (paramiko.SSHException, EOFError, OSError)


class _Wake(threading.Event):
    """Set by whatever happens on a channel. Paramiko's pipes clear it when they run empty; here in vain."""

    def clear(self) -> None:
        pass

    def rearm(self) -> None:
        super().clear()


class _StatusEvent(threading.Event):
    """Stands in for `Channel.status_event`, so that the exit status wakes the reader too."""

    def __init__(self, wake: _Wake) -> None:
        super().__init__()
        self._wake = wake

    def set(self) -> None:
        super().set()
        self._wake.set()


class _Reply(threading.Event):
    """Stands in for `Channel.event`, for whose answer to a request paramiko would wait for ever."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self._limit = limit

    def wait(self, timeout: float | None = None) -> bool:
        """Raises TimeoutError in place of returning False."""
        if super().wait(self._limit if timeout is None else timeout):
            return True
        raise TimeoutError(f"no answer within {self._limit:g} s")


def open_session(transport: paramiko.Transport, limit: float) -> paramiko.Channel:
    """A new session channel. It is opened, and its requests are answered, within `limit` seconds.

    Raises one of CHANNEL_ERRORS; ChannelException where the host allows no further session.
    """
    session = transport.open_session(timeout=limit)
    session.event = _Reply(limit)
    return session


class RemoteCommand(RunningCommand):
    """A command over a channel.

    Args:
        host: the host's name in messages.
        session: a new channel, as `open_session` gives it.
        command: what the login shell is given.
        on_stderr: takes each piece of standard error, in the thread that reads.

    Raises:
        HostError: phase `channel`.
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
        self._writer = Writer(session.sendall, self._end_input, self._wake.set)
        self._start(command)

    def _start(self, command: str) -> None:
        try:
            self._channel.exec_command(command)
        except CHANNEL_ERRORS as error:
            self.close()
            if not self._transport.is_active():
                raise self._lost() from error
            raise HostError(self.host, "channel", f"the command was refused: {cause_of(error)}") from error

    def close(self) -> None:
        with contextlib.suppress(*CHANNEL_ERRORS):  # the loss of the connection has closed it
            self._channel.close()
        self._writer.close(1.0)

    @property
    def stderr(self) -> str:
        """The end of what came on standard error so far."""
        return self._errors.decode(errors="replace")

    @property
    def exit_code(self) -> int | None:
        status = self._channel.exit_status
        return status if self._channel.status_event.is_set() and status >= 0 else None

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
        """One piece, lest a command that never stops talking keeps the reader here."""
        if self._channel.recv_stderr_ready():
            data = self._channel.recv_stderr(_READ)
            self._errors += data
            del self._errors[:-_ERRORS_KEPT]
            if self._on_stderr is not None:
                self._on_stderr(data)

    def _at_end(self) -> bool:
        """Whether nothing can come any more. What has come is looked for after that was decided."""
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

    def _lost(self) -> HostError:
        """The error for a connection that ended while it was in use."""
        error = self._transport.saved_exception
        return HostError(self.host, "channel", "connection lost" + (f": {cause_of(error)}" if error else ""))

    def _ready(self) -> bool:
        return self._channel.recv_ready() or self._channel.recv_stderr_ready()

    def _next_look(self, now: float, deadline: float | None) -> float | None:
        """Seconds until something is due even if nothing happens."""
        due = [] if deadline is None else [deadline]
        if self._ended_at is not None:
            due.append(self._ended_at + _LINGER)
        return max(0.0, min(due) - now) if due else None


def cause_of(error: BaseException) -> str:
    """What one of CHANNEL_ERRORS means."""
    return "closed by the host" if isinstance(error, EOFError) else strerror(error)
