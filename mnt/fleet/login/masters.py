"""Gateways for OpenSSH's own client: one login to each, a ControlMaster, shared by every `ssh` behind it.

A master is a child of this process and ends with it, no matter how that ends. Its socket lies in a directory
of its own, which is removed with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from typing import IO, Any

from mnt.fleet.login.destination import Destination
from mnt.fleet.login.failures import LoginCancelled, LoginFailure
from mnt.fleet.wire.sshwords import NO_SSH_FIX, failure_of, has_session_type, master_argv, proxy_command
from mnt.fleet.wire.timeouts import Timeouts
from mnt.inventory.model import Host
from mnt.remote.common.files import strerror
from mnt.remote.common.owners import make_private_directory
from mnt.remote.common.refusal import Refused

_POLL = 0.02  # seconds
_END_GRACE = 2.0  # seconds for a master to end
_STDERR_KEPT = 1 << 14  # bytes

# Ends ssh, and removes what it may leave, when standard input ends: the head has closed it, or has died.
_KEEPER = """exec 3<&0
"$@" 3<&- </dev/null &
ssh=$!
{ read -r _; kill "$ssh"; } <&3 >/dev/null 2>&1 &
keeper=$!
exec 3<&- </dev/null
wait "$ssh"
code=$?
kill "$keeper" 2>/dev/null
rm -rf -- "$0"
exit "$code"
"""


class Master:
    """An `ssh` that logs in to a gateway: `run` starts it, and returns when it has logged in.

    For mnt.fleet.login.gateways it is both the login and the connection. After `close` it starts no more.
    """

    def __init__(self, destination: Destination, timeouts: Timeouts) -> None:
        self._destination = destination
        self._timeouts = timeouts
        self._lock = threading.Lock()  # held to start it
        self._closed = False
        self._process: Any = None
        self._directory = ""

    def run(self, via: Master | None) -> Master:
        """Log in, through the master of the hop before. Raises LoginFailure."""
        proxy = None if via is None else via.proxy_to(self._destination)
        with self._lock:
            if self._closed:
                raise LoginCancelled("connect")
            stderr = self._start(proxy)
        limits = self._timeouts
        limit = limits.connect + limits.banner + limits.key_exchange + limits.authentication
        deadline = time.monotonic() + limit
        with stderr:
            while not os.path.exists(self._socket):  # ssh makes it once it has logged in, by one rename
                late = time.monotonic() > deadline
                if late or not self.is_active():
                    self._end()
                    if self._closed:
                        raise LoginCancelled("connect")
                    if late:
                        raise LoginFailure("authentication", f"not done within {limit:g} s")
                    output = os.pread(stderr.fileno(), _STDERR_KEPT, 0).decode(errors="replace")
                    raise LoginFailure(*failure_of(output))
                time.sleep(_POLL)
        return self

    @property
    def _socket(self) -> str:
        return f"{self._directory}/0"

    def _start(self, proxy: str | None) -> IO[bytes]:
        """Start ssh; returns the file with its standard error. Raises LoginFailure."""
        if shutil.which("ssh") is None:
            raise LoginFailure("connect", "ssh: No such file or directory", fix=NO_SSH_FIX)
        host = Host(self._destination.name, self._destination.name, self._destination.given)
        try:
            # A socket's path must be short (sun_path, 108 bytes), and a shell reads this one.
            self._directory = make_private_directory("mnt-ssh-")
            stderr = tempfile.TemporaryFile(prefix="mnt-")  # noqa: SIM115 - `run` closes it
            words = master_argv(
                host,
                self._timeouts,
                self._socket,
                proxy=proxy,
                strict=self._destination.strict,
                newer=has_session_type(),
            )
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, self._directory, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,  # the terminal's Ctrl-C is not for it
            )
        except Refused as refusal:
            raise LoginFailure("connect", refusal.message, fix=refusal.fix) from None
        except OSError as error:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise LoginFailure("connect", f"ssh: {strerror(error)}") from None
        return stderr

    def is_active(self) -> bool:
        return self._process.poll() is None

    def proxy_to(self, destination: Destination) -> str:
        """The ProxyCommand for an `ssh` to a server behind it. Raises LoginFailure."""
        try:
            return proxy_command(self._socket, destination.hostname, destination.port)
        except ValueError as error:
            raise LoginFailure("resolve", str(error)) from None

    def close(self) -> None:
        """End it, and wait until it has ended; `run` then raises LoginCancelled. Safe to call again."""
        with self._lock:
            self._closed = True
        if self._process is not None:
            self._end()

    cancel = close

    def _end(self) -> None:
        process = self._process
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_END_GRACE)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
