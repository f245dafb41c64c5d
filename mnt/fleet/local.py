"""This machine in place of a host: what a HostConnection does, by processes of our own, without a login."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable

from paramiko import Transport

from mnt.errors import HostError, strerror
from mnt.fleet.connection import HostConnection
from mnt.fleet.login.destination import Destination
from mnt.fleet.login.shared import Shared
from mnt.fleet.wire.process import ProcessCommand
from mnt.inventory.model import Host

_END_GRACE = 1.0  # seconds for a command to end once its input is closed
_OF_A_LOGIN = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG")  # the variables that sshd would set


class LocalConnection(HostConnection):
    """Stands where a HostConnection does; `start` is what it can do. There is nothing to open."""

    def __init__(self, target: Host, shared: Shared | None = None) -> None:
        super().__init__(target, shared)
        self._running: list[LocalCommand] = []

    @property
    def key_logins(self) -> tuple[Destination, ...]:
        """None: nobody logs in."""
        return ()

    def open(self) -> None:
        pass

    def _log_in(self) -> Transport:
        """Raises HostError: there is nothing but `start`."""
        raise HostError(self.target.name, "channel", "nobody logs in to this machine")

    def start(self, command: str, *, on_stderr: Callable[[bytes], object] | None = None) -> LocalCommand:
        """Start a command in a shell of this machine, with the variables of a login. Raises HostError."""
        try:
            with self._opening:
                self._running = [running for running in self._running if running.exit_code is None]
                self._running.append(LocalCommand(self.target.name, command, on_stderr))
                return self._running[-1]
        except OSError as error:
            raise HostError(self.target.name, "command", f"no shell starts: {strerror(error)}") from None

    def close(self) -> None:
        """End what runs."""
        with self._opening:
            running, self._running = self._running, []
        for command in running:
            command.close()


class LocalCommand(ProcessCommand):
    """A command in a shell of this machine. Raises OSError where none can be started."""

    def __init__(self, host: str, command: str, on_stderr: Callable[[bytes], object] | None) -> None:
        login = [f"{name}={os.environ[name]}" for name in _OF_A_LOGIN if name in os.environ]
        super().__init__(host, ["env", "-i", *login, "sh", "-c", command], on_stderr)

    def close(self) -> None:
        """End its input, as the loss of a connection does: programs of mnt.remote then end by themselves."""
        self.end_input()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_GRACE)
            return
        super().close()
