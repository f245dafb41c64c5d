"""OpenSSH's own client in place of paramiko, for what that cannot do: GSSAPI, hardware keys, certificates.

Each command is a process of `ssh` with a connection of its own. It reads the user's ssh_config by itself, and
never asks: BatchMode.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import re
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
from mnt.fleet.timeouts import Timeouts
from mnt.inventory.model import Host, Ssh

_READ = 1 << 16  # bytes
_FAILED = 255  # exit status of ssh itself
_SAID_KEPT = 1 << 14  # bytes
_END_GRACE = 1.0  # seconds for ssh to end once its input is closed and it was told to

# What ssh 9 says, in order: pattern, phase of HostError.
_PHASES = (
    (re.compile(r"could not resolve", re.I), "resolve"),
    (re.compile(r"host key verification failed|host identification has changed", re.I), "host key"),
    (re.compile(r"permission denied|too many authentication failures", re.I), "authentication"),
    (re.compile(r"banner exchange", re.I), "banner"),
    (re.compile(r"kex_exchange|key exchange", re.I), "key exchange"),
    (re.compile(r"connect to host|connection timed out|no route to host", re.I), "connect"),
)


def ssh_argv(host: Host, timeouts: Timeouts, command: str) -> list[str]:
    """The words that run `command` on a host. What the inventory leaves open is ssh_config's to say."""
    ssh = host.ssh
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(math.ceil(timeouts.connect)),
        "ServerAliveInterval": str(math.ceil(timeouts.keepalive)),
        "StrictHostKeyChecking": "yes" if ssh.host_keys == "strict" else "accept-new",
    }
    if ssh.identity is not None:
        options |= {"IdentityFile": _file(ssh.identity), "IdentitiesOnly": "yes"}
    if ssh.known_hosts != Ssh.known_hosts:
        options["UserKnownHostsFile"] = _file(ssh.known_hosts)
    words = ["ssh", "-T", *_config(ssh.config)]
    words += [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    if ssh.user is not None:
        words += ["-l", ssh.user]
    if ssh.port is not None:
        words += ["-p", str(ssh.port)]
    if ssh.gateway is not None:
        words += ["-J", ssh.gateway or "none"]
    return [*words, "--", host.address.strip("[]"), command]


def _config(file: str | None) -> list[str]:
    """ssh reads the user's file, and the system's beside it, without being told."""
    if file == Ssh.config:
        return []
    return ["-F", "none" if file is None else os.path.expanduser(file)]


def _file(path: str) -> str:
    """A path as the value of an option: ssh would split it at spaces, and expand `%`."""
    return '"' + os.path.expanduser(path).replace("%", "%%") + '"'


def phase_of(said: str) -> str:
    """The phase in which ssh failed, by what it said on standard error."""
    return next((phase for pattern, phase in _PHASES if pattern.search(said)), "channel")


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
        """Start a command in an `ssh` of its own. Raises HostError where there is no ssh."""
        with self._opening:
            if self._closed:
                raise HostError(self.target.name, "connect", "given up: the connection was closed")
            self._running.append(OpenSshCommand(self.target, self.timeouts, command, on_stderr))
            return self._running[-1]

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
        timeouts: Timeouts,
        command: str,
        on_stderr: Callable[[bytes], object] | None,
    ) -> None:
        self.host = host.name
        self._on_stderr = on_stderr
        self._failure: BaseException | None = None  # of iterating over what is to be written
        self._said = bytearray()  # the beginning of standard error
        try:
            self._process = subprocess.Popen(
                ssh_argv(host, timeouts, command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # the terminal's Ctrl-C is ours to pass on
            )
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            fix = "install OpenSSH's client, or leave --worker ssh out"
            raise HostError(self.host, "connect", f"ssh: {reason}", fix=fix) from None
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
            said = self._said.decode(errors="replace").strip()
            lines = said.splitlines()
            raise HostError(self.host, phase_of(said), f"ssh: {lines[-1] if lines else 'it ended'}")
