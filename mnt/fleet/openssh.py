"""OpenSSH's own client in place of paramiko, for what that cannot do: GSSAPI, hardware keys, certificates.

Each command is a process of `ssh` with a connection of its own. It reads the user's ssh_config by itself, and
never asks: BatchMode. The way through gateways is `masters`'.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import IO, Any

from mnt.errors import HostError
from mnt.fleet.channel import ReadTimeout
from mnt.fleet.connection import HostConnection, Shared
from mnt.fleet.endpoint import Endpoint
from mnt.fleet.failures import Cancelled, Failure
from mnt.fleet.sshwords import NO_SSH_FIX, failure_of, ssh_argv
from mnt.inventory.model import Host

_READ = 1 << 16  # bytes
_FAILED = 255  # exit status of ssh itself
_SAID_KEPT = 1 << 14  # bytes
_END_GRACE = 1.0  # seconds for ssh to end once its input is closed and it was told to


class OpenSshConnection(HostConnection):
    """Stands where a HostConnection does; `start` is what it can do. There is nothing to open."""

    _closed: bool = False

    def __init__(self, target: Host, shared: Shared | None = None) -> None:
        super().__init__(target, shared)
        self._running: list[OpenSshCommand] = []

    @property
    def logins(self) -> tuple[Endpoint, ...]:
        """None of ours: ssh has its own ways with keys."""
        return ()

    def open(self) -> None:
        pass

    def open_session(self, timeout: float) -> Any:
        """Raises HostError: there is nothing but `start`."""
        raise HostError(self.target.name, "channel", "ssh runs one command a connection")

    def start(self, command: str, *, on_stderr: Callable[[bytes], object] | None = None) -> OpenSshCommand:
        """Start a command in an `ssh` of its own. Raises HostError: there is no ssh, or a gateway fails."""
        words = ssh_argv(self.target, self.timeouts, command, proxy=self._proxy())
        with self._opening:
            if self._closed:
                raise self._given_up()
            self._running.append(OpenSshCommand(self.target, words, on_stderr))
            return self._running[-1]

    def _proxy(self) -> str | None:
        """What ssh is to take for a connection; None: nothing, it connects by itself. Raises HostError."""
        try:
            master = self._shared.masters.through(self.endpoint.jumps)
            return None if master is None else master.proxy_to(self.endpoint)
        except Failure as failure:
            raise HostError(self.target.name, failure.phase, failure.message, fix=failure.fix) from None
        except Cancelled:
            raise self._given_up() from None

    def _given_up(self) -> HostError:
        return HostError(self.target.name, "connect", "given up: the connection was closed")

    def close(self) -> None:
        """End what runs."""
        with self._opening:
            self._closed = True
        for running in self._running:
            running.close()


class OpenSshCommand:
    """A command that runs over an `ssh` process; RemoteCommand says what its methods do.

    Raises:
        HostError: there is no ssh. `read` raises one where ssh ends by itself, of the phase it was in.
    """

    def __init__(
        self,
        host: Host,
        words: list[str],
        on_stderr: Callable[[bytes], object] | None,
    ) -> None:
        self.host = host.name
        self._on_stderr = on_stderr
        self._failure: BaseException | None = None  # of iterating over what is to be written
        self._said = bytearray()  # the beginning of standard error
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # the terminal's Ctrl-C is ours to pass on
            )
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise HostError(self.host, "connect", f"ssh: {reason}", fix=NO_SSH_FIX) from None
        process: Any = self._process  # its pipes are there
        self._stdin: IO[bytes] = process.stdin
        self._streams: dict[int, IO[bytes]] = {
            pipe.fileno(): pipe for pipe in (process.stdout, process.stderr)
        }
        self._stderr: int = process.stderr.fileno()
        self._poll = select.poll()
        for descriptor in self._streams:
            self._poll.register(descriptor, select.POLLIN)
        self._chunks: queue.SimpleQueue[Iterable[bytes] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._feed, daemon=True, name="mnt-stdin")
        self._writer.start()

    def __enter__(self) -> OpenSshCommand:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self.end_input()
        self._writer.join(_END_GRACE)
        for stream in self._streams.values():
            stream.close()

    def close(self) -> None:
        """End ssh, which ends the connection. Safe to call from any thread."""
        self._process.terminate()
        try:
            self._process.wait(_END_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def exit_code(self) -> int | None:
        code = self._process.poll()
        return code if code is not None and 0 <= code < _FAILED else None

    @property
    def stderr(self) -> str:
        return self._said.decode(errors="replace")

    def settle(self, timeout: float) -> bool:
        return False  # nothing is kept for a further program

    def write(self, chunks: Iterable[bytes]) -> None:
        self._chunks.put(chunks)

    def end_input(self) -> None:
        self._chunks.put(None)

    def _feed(self) -> None:
        try:
            while (chunks := self._chunks.get()) is not None:
                for chunk in chunks:
                    view = memoryview(chunk)
                    while view:
                        view = view[self._stdin.write(view) :]
        except OSError:
            pass  # ssh has ended: for the reader to see
        except BaseException as error:  # noqa: BLE001 - belongs to the thread that reads
            self._failure = error
            self._process.terminate()
        with contextlib.suppress(OSError):
            self._stdin.close()

    def read(self, timeout: float | None = None) -> bytes:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._streams:
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            ready = self._poll.poll(left)
            if not ready:
                raise ReadTimeout
            for descriptor, _ in ready:
                data = os.read(descriptor, _READ)
                if not data:
                    self._poll.unregister(descriptor)
                    self._streams.pop(descriptor).close()
                elif descriptor == self._stderr:
                    self._take_errors(data)
                else:
                    return data
            if deadline is not None and self._streams and time.monotonic() >= deadline:
                raise ReadTimeout
        self._check_end()
        return b""

    def _take_errors(self, data: bytes) -> None:
        self._said += data[: _SAID_KEPT - len(self._said)]
        if self._on_stderr is not None:
            self._on_stderr(data)

    def _check_end(self) -> None:
        """Raise what went wrong: with what was to be written, or with ssh, before the command or in it."""
        if self._failure is not None:
            raise self._failure
        if self._process.wait() == _FAILED:
            phase, message = failure_of(self._said.decode(errors="replace"))
            raise HostError(self.host, phase, message)
