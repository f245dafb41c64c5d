"""A command on a host over one SSH channel: both streams drained, standard input streamed, under a deadline.

Paramiko offers blocking reads of one stream at a time, which deadlocks as soon as a command fills the other.
Here one thread waits for whatever happens first on the channel: output, errors, the exit status, its end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import paramiko
from fabric.connection import Connection

from mnt.errors import HostError
from mnt.fleet.timeouts import Timeouts

_READ = 1 << 16  # bytes
_OUTPUT_LIMIT = 1 << 26  # bytes of standard output that `execute` keeps for its caller
_ERRORS_KEPT = 1 << 16  # bytes of standard error that are kept: its end
_LINGER = 0.5  # seconds for the rest of the output, once the command has ended but something holds its stdout

_CHANNEL_ERRORS = (paramiko.SSHException, EOFError, OSError)


def host_name(connection: Connection) -> str:
    """The name of the host in messages: the inventory's, or what Fabric was given."""
    target = getattr(connection, "target", None)
    return str(connection.host if target is None else target.name)


def timeouts_of(connection: Connection) -> Timeouts:
    """The limits of a HostConnection, the default ones for Fabric's own."""
    timeouts = getattr(connection, "timeouts", None)
    return timeouts if isinstance(timeouts, Timeouts) else Timeouts()


class ReadTimeout(TimeoutError):
    """Nothing came on standard output in time."""


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


class RunningCommand(Protocol):
    """A command on a host, whatever client it was started with: what RemoteCommand says of these."""

    host: str

    def __enter__(self) -> RunningCommand: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def exit_code(self) -> int | None: ...

    def close(self) -> None: ...

    def write(self, chunks: Iterable[bytes]) -> None: ...

    def end_input(self) -> None: ...

    def read(self, timeout: float | None = None) -> bytes: ...


def open_session(connection: Connection) -> Any:
    """A new session channel, whose requests are answered within `Timeouts.channel` or fail with an OSError.

    Raises HostError: phase `channel`; or any phase before it where the connection had to be opened.
    """
    limit = timeouts_of(connection).channel
    own = getattr(connection, "open_session", None)  # a HostConnection may take a further transport
    try:
        if own is not None:
            channel = own(limit)
        else:
            connection.open()  # type: ignore[no-untyped-call]
            transport: Any = connection.transport
            channel = transport.open_session(timeout=limit)
    except _CHANNEL_ERRORS as error:
        raise HostError(host_name(connection), "channel", f"no session: {_reason(error)}") from error
    channel.event = _Reply(limit)
    return channel


class RemoteCommand:
    """A command that runs on a host. Leaving the `with` block closes the channel.

    Standard input stays open until then, or until `end_input`: its end tells programs of mnt.remote that the
    head is gone.

    Args:
        connection: opened if it is not.
        command: what the login shell is given.
        on_stderr: takes each piece of standard error, in the thread that reads.

    Raises:
        HostError: phase `channel`; or any phase before it where the connection had to be opened.
    """

    def __init__(
        self,
        connection: Connection,
        command: str,
        *,
        on_stderr: Callable[[bytes], object] | None = None,
    ) -> None:
        self.host = host_name(connection)
        self._wake = _Wake()
        self._errors = bytearray()
        self._on_stderr = on_stderr
        self._ended_at: float | None = None
        self._writer: _Writer | None = None
        self._channel = self._open(connection)
        self._start(command)

    def _open(self, connection: Connection) -> Any:
        channel = open_session(connection)
        channel.in_buffer.set_event(self._wake)
        channel.in_stderr_buffer.set_event(self._wake)
        channel.status_event = _StatusEvent(self._wake)
        return channel

    def _start(self, command: str) -> None:
        try:
            self._channel.exec_command(command)
        except _CHANNEL_ERRORS as error:
            self.close()
            transport = self._channel.transport
            if not transport.is_active():
                raise lost(self.host, transport) from error
            raise HostError(self.host, "channel", f"the command was refused: {_reason(error)}") from error

    def __enter__(self) -> RemoteCommand:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel; a writer that is at work ends."""
        with contextlib.suppress(*_CHANNEL_ERRORS):  # the loss of the connection has closed it
            self._channel.close()
        if self._writer is not None:
            self._writer.join(1.0)

    @property
    def stderr(self) -> str:
        """The end of what came on standard error so far."""
        return self._errors.decode(errors="replace")

    @property
    def exit_code(self) -> int | None:
        """128+N for a signal, None while it runs or where the host did not say."""
        status = self._channel.exit_status
        return status if self._channel.status_event.is_set() and status >= 0 else None

    def write(self, chunks: Iterable[bytes]) -> None:
        """Send `chunks` to standard input in the background, after what was written before.

        What iterating raises is raised by `read`.
        """
        if self._writer is None and isinstance(chunks, list) and self._has_room(chunks):
            with contextlib.suppress(BrokenPipeError):
                for chunk in chunks:
                    self._send(chunk)
            return
        self._writer = _Writer(self._send, chunks, self._wake, after=self._writer)
        self._writer.start()

    def _has_room(self, chunks: list[bytes]) -> bool:
        """Whether sending cannot block, so that no thread is needed."""
        return sum(map(len, chunks)) <= int(self._channel.out_window_size)

    def _send(self, data: bytes) -> None:
        # A command or a connection that has ended is the reader's to see.
        with contextlib.suppress(OSError):
            self._channel.sendall(data)
            return
        raise BrokenPipeError

    def end_input(self) -> None:
        """Close standard input, after what was written before."""
        self.write(self._nothing_more())

    def _nothing_more(self) -> Iterator[bytes]:
        with contextlib.suppress(*_CHANNEL_ERRORS):
            self._channel.shutdown_write()
        yield from ()

    def read(self, timeout: float | None = None) -> bytes:
        """The next piece of standard output; empty at its end.

        Raises:
            ReadTimeout: nothing came within `timeout` seconds.
            HostError: phase `channel`: the connection is lost.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._wake.rearm()
            self._take_errors()
            if self._writer is not None:
                self._writer.check()
            if self._channel.recv_ready():
                data: bytes = self._channel.recv(_READ)
                return data
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
            if self.exit_code is None and not channel.transport.is_active():
                raise lost(self.host, channel.transport)
            return not self._ready()
        if not channel.status_event.is_set():
            return False
        if channel.eof_received:
            return not self._ready()
        self._ended_at = self._ended_at or time.monotonic()
        return time.monotonic() - self._ended_at >= _LINGER and not self._ready()

    def _ready(self) -> bool:
        return bool(self._channel.recv_ready() or self._channel.recv_stderr_ready())

    def _next_look(self, now: float, deadline: float | None) -> float | None:
        """Seconds until something is due even if nothing happens."""
        due = [] if deadline is None else [deadline]
        if self._ended_at is not None:
            due.append(self._ended_at + _LINGER)
        return max(0.0, min(due) - now) if due else None


class _Writer(threading.Thread):
    """Feeds an iterable to a channel, so that the thread which reads never blocks on a full window."""

    def __init__(
        self, send: Callable[[bytes], None], chunks: Iterable[bytes], wake: _Wake, after: _Writer | None
    ) -> None:
        super().__init__(daemon=True, name="mnt-stdin")
        self._send_chunk = send
        self._chunks = chunks
        self._wake = wake
        self._after = after
        self._error: BaseException | None = None

    def run(self) -> None:
        if self._after is not None:
            self._after.join()
        try:
            for chunk in self._chunks:
                self._send_chunk(chunk)
        except BrokenPipeError:
            pass
        except BaseException as error:  # noqa: BLE001 - belongs to the thread that reads
            self._error = error
            self._wake.set()

    def check(self) -> None:
        """Raise what went wrong in this writer or one before it."""
        if self._after is not None:
            self._after.check()
        if self._error is not None:
            raise self._error


def remaining(deadline: float) -> float:
    """Seconds until `deadline` (time.monotonic()). Raises ReadTimeout after it."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise ReadTimeout
    return left


@dataclass(frozen=True)
class Completed:
    """A command that has ended. `stderr` is its end, at most 64 KiB; `exit_code` 128+N for a signal."""

    stdout: bytes
    stderr: str
    exit_code: int | None  # None: the host did not say


def execute(
    connection: Connection,
    command: str,
    *,
    stdin: Iterable[bytes] = (),
    timeout: float | None = None,
    on_stdout: Callable[[bytes], object] | None = None,
) -> Completed:
    """Run a command to its end; standard input ends after `stdin`.

    Args:
        command: for the login shell; quote what is data.
        timeout: seconds; None: `Timeouts.command`.
        on_stdout: takes each piece of standard output as it comes; `Completed.stdout` is then empty.
            Without it, more than 64 MiB are an error.

    Raises HostError: phase `command` when it takes too long; `answer` when it says too much;
    `channel` or an earlier one for want of a
    connection.
    """
    limit = timeouts_of(connection).command if timeout is None else timeout
    deadline = time.monotonic() + limit
    output = bytearray()
    take = output.extend if on_stdout is None else on_stdout
    with RemoteCommand(connection, command) as running:
        if stdin:
            running.write(stdin)
        running.end_input()
        try:
            while data := running.read(remaining(deadline)):  # some hosts never fall silent
                take(data)
                if len(output) > _OUTPUT_LIMIT:
                    raise HostError(running.host, "answer", f"more than {_OUTPUT_LIMIT >> 20} MiB of output")
        except ReadTimeout:
            raise HostError(running.host, "command", f"not done within {limit:g} s") from None
        return Completed(bytes(output), running.stderr, running.exit_code)


def lost(host: str, transport: Any) -> HostError:
    """The error for a connection that ended while it was in use."""
    reason = transport.saved_exception
    return HostError(host, "channel", "connection lost" + (f": {_reason(reason)}" if reason else ""))


def _reason(error: BaseException) -> str:
    if isinstance(error, EOFError):
        return "closed by the host"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
