"""Gateways for OpenSSH's own client: one login to each, a ControlMaster, shared by every `ssh` behind it.

A master is a child of this process and ends with it, however that ends. Its socket lies in a directory of its
own, which goes with it.
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
from typing import Any

from mnt.errors import strerror
from mnt.fleet.login.destination import Destination
from mnt.fleet.login.failures import LoginCancelled, LoginFailure
from mnt.fleet.login.gateways import Gateways
from mnt.fleet.wire.sshwords import NO_SSH_FIX, failure_of, master_argv, proxy_command
from mnt.fleet.wire.timeouts import Timeouts
from mnt.inventory.model import Host

# Whatever TMPDIR is: a socket's path is short (sun_path, 108 bytes), and a shell reads this one.
_DIRECTORIES = "/tmp"
_POLL = 0.02  # seconds
_END_GRACE = 2.0  # seconds for a master to end
_SAID_KEPT = 1 << 14  # bytes

# Ends ssh, and what it may leave, when standard input does: the head has let go of it, or has died.
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
    """An `ssh` that logs in to a gateway, or has done so. Raises LoginFailure where it cannot be started."""

    def __init__(self, destination: Destination, timeouts: Timeouts, via: Master | None) -> None:
        proxy = None if via is None else via.proxy_to(destination)
        if shutil.which("ssh") is None:
            raise LoginFailure("connect", "ssh: no such file or directory", fix=NO_SSH_FIX)
        host = Host(destination.name, destination.name, destination.given)
        self._directory: str | None = None
        try:
            self._directory = tempfile.mkdtemp(prefix="mnt-ssh-", dir=_DIRECTORIES)
            self._socket = f"{self._directory}/0"
            self._said = tempfile.TemporaryFile(prefix="mnt-")  # noqa: SIM115 - as long as the master lives
            words = master_argv(host, timeouts, self._socket, proxy=proxy)
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, self._directory, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                start_new_session=True,  # the terminal's Ctrl-C is not for it
            )
        except OSError as error:
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
            raise LoginFailure("connect", f"ssh: {strerror(error)}") from None

    @property
    def ready(self) -> bool:
        """Whether it has logged in: ssh makes the socket then, by one rename."""
        return os.path.exists(self._socket)

    def is_active(self) -> bool:
        return self._process.poll() is None

    def failure(self) -> LoginFailure:
        """Why it has ended."""
        said = os.pread(self._said.fileno(), _SAID_KEPT, 0).decode(errors="replace")
        phase, message = failure_of(said)
        return LoginFailure(phase, message)

    def proxy_to(self, destination: Destination) -> str:
        """The ProxyCommand for an `ssh` to what lies behind. Raises LoginFailure."""
        try:
            return proxy_command(self._socket, destination.hostname, destination.port)
        except ValueError as error:
            raise LoginFailure("resolve", str(error)) from None

    def close(self) -> None:
        """End it, and wait for that. Safe to call from any thread, and again."""
        process: Any = self._process
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_END_GRACE)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(str(self._directory), ignore_errors=True)


class MasterLogin:
    """The login at one gateway; the counterpart of mnt.fleet.login.login.Login."""

    def __init__(self, destination: Destination, timeouts: Timeouts) -> None:
        self._destination = destination
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._cancelled = False
        self._master: Master | None = None

    def cancel(self) -> None:
        """Make `run` end soon, with LoginCancelled; what it has started has ended."""
        with self._lock:
            self._cancelled = True
        if self._master is not None:
            self._master.close()

    def run(self, via: Master | None) -> Master:
        """A master that has logged in, through that of the hop before. Raises LoginFailure."""
        with self._lock:
            if self._cancelled:
                raise LoginCancelled("connect")
            master = self._master = Master(self._destination, self._timeouts, via)
        limits = self._timeouts
        limit = limits.connect + limits.banner + limits.key_exchange + limits.authentication
        deadline = time.monotonic() + limit
        while not master.ready:
            if not master.is_active() or time.monotonic() > deadline:
                late = master.is_active()
                master.close()
                if self._cancelled:
                    raise LoginCancelled("connect")
                if late:
                    raise LoginFailure("authentication", f"not done within {limit:g} s")
                raise master.failure()
            time.sleep(_POLL)
        return master


class Masters(Gateways[Master]):
    """The masters of a fleet, each hop's once."""

    def __init__(self, timeouts: Timeouts) -> None:
        super().__init__(lambda destination: MasterLogin(destination, timeouts), for_good=True)
