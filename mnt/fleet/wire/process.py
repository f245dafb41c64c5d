"""A command that is a process of this machine: OpenSSH's client, or the command itself."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

from mnt.errors import HostError
from mnt.fleet.wire.command import ReadTimeout, RunningCommand, Writer
from mnt.fleet.wire.sshwords import NO_SSH_FIX, failure_of
from mnt.remote.common.files import strerror

_READ = 1 << 16  # bytes
_FAILED = 255  # exit status of ssh if ssh itself fails
_ERRORS_KEPT = 1 << 14  # bytes
_END_GRACE = 1.0  # seconds for the process to end after SIGTERM


class ProcessCommand(RunningCommand):
    """A process of this machine, in a session of its own. Raises OSError if it cannot be started."""

    def __init__(
        self,
        host: str,
        words: Sequence[str],
        on_stderr: Callable[[bytes], object] | None,
    ) -> None:
        self.host = host
        self._on_stderr = on_stderr
        self._errors = bytearray()  # the beginning of standard error
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # the terminal's Ctrl-C is ours to pass on
        )
        process: Any = self._process  # its pipes are there
        self._stdin: IO[bytes] = process.stdin
        self._streams: dict[int, IO[bytes]] = {
            pipe.fileno(): pipe for pipe in (process.stdout, process.stderr)
        }
        self._stderr: int = process.stderr.fileno()
        self._poll = select.poll()
        for descriptor in self._streams:
            self._poll.register(descriptor, select.POLLIN)
        self._writer = Writer(self._send, self._close_input, self._process.terminate)

    def __exit__(self, *_: object) -> None:
        self.close()
        self._writer.close(_END_GRACE)
        for stream in self._streams.values():
            stream.close()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_END_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def exit_code(self) -> int | None:
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    @property
    def stderr(self) -> str:
        return self._errors.decode(errors="replace")

    def _send(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            view = view[self._stdin.write(view) :]

    def _close_input(self) -> None:
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
        self._errors += data[: _ERRORS_KEPT - len(self._errors)]
        if self._on_stderr is not None:
            self._on_stderr(data)

    def _check_end(self) -> None:
        """Wait for the end, and raise what writing the input has raised."""
        self._process.wait()
        self._writer.check()


class OpenSshCommand(ProcessCommand):
    """A command over an `ssh` process.

    Raises:
        HostError: there is no ssh. If ssh itself fails, `read` raises one, with the phase in which it failed.
    """

    def __init__(self, host: str, words: Sequence[str], on_stderr: Callable[[bytes], object] | None) -> None:
        try:
            super().__init__(host, words, on_stderr)
        except OSError as error:
            raise HostError(host, "connect", f"ssh: {strerror(error)}", fix=NO_SSH_FIX) from None

    @property
    def exit_code(self) -> int | None:
        """None also if ssh itself failed or was ended."""
        code = self._process.poll()
        return code if code is not None and 0 <= code < _FAILED else None

    def _check_end(self) -> None:
        """Also raise the failure of ssh itself."""
        super()._check_end()
        if self._process.returncode == _FAILED:
            phase, message = failure_of(self.stderr)
            raise HostError(self.host, phase, message)
