"""This machine in place of a host: what a HostConnection does, by processes of our own, without a login."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable
from typing import Any

from mnt.errors import HostError
from mnt.fleet.connection import HostConnection, Shared
from mnt.fleet.endpoint import Endpoint
from mnt.fleet.openssh import OpenSshCommand
from mnt.inventory.model import Host

_END_GRACE = 1.0  # seconds for a command to end once its input is closed
_OF_A_LOGIN = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG")  # the variables that sshd would set


class LocalConnection(HostConnection):
    """Stands where a HostConnection does; `start` is what it can do. There is nothing to open."""

    _running: list[LocalCommand] = None  # type: ignore[assignment]

    def __init__(self, target: Host, shared: Shared | None = None) -> None:
        super().__init__(target, shared)
        self._running = []

    @property
    def logins(self) -> tuple[Endpoint, ...]:
        return ()

    def open(self) -> None:
        pass

    def open_session(self, timeout: float) -> Any:
        """Raises HostError: there is nothing but `start`."""
        raise HostError(self.target.name, "channel", "this machine is not logged in to")

    def start(self, command: str, *, on_stderr: Callable[[bytes], object] | None = None) -> LocalCommand:
        """Start a command in a shell of this machine, with the variables of a login. Raises HostError."""
        with self._opening:
            self._running = [running for running in self._running if running.exit_code is None]
            self._running.append(LocalCommand(self.target, command, on_stderr))
            return self._running[-1]

    def close(self) -> None:
        """End what runs."""
        with self._opening:
            running, self._running = self._running, []
        for command in running:
            command.close()


class LocalCommand(OpenSshCommand):
    """A command of this machine, in a session of its own; RemoteCommand says what its methods do."""

    def __init__(self, host: Host, command: str, on_stderr: Callable[[bytes], object] | None) -> None:
        login = [f"{name}={os.environ[name]}" for name in _OF_A_LOGIN if name in os.environ]
        super().__init__(host, ["env", "-i", *login, "sh", "-c", command], on_stderr)

    def close(self) -> None:
        """End its input, as the loss of a connection does: programs of mnt.remote then end by themselves."""
        self.end_input()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_GRACE)
            return
        super().close()

    @property
    def exit_code(self) -> int | None:
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def _check_end(self) -> None:
        self._process.wait()
        if self._failure is not None:
            raise self._failure
