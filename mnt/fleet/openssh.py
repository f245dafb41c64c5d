"""OpenSSH's own client in place of paramiko, for what that cannot do: GSSAPI, hardware keys, certificates.

Each command is a process of `ssh` with a connection of its own. It reads the user's ssh_config by itself, and
never asks: BatchMode. The way through gateways is that of `login/masters.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from paramiko import Transport

from mnt.errors import HostError
from mnt.fleet.connection import HostConnection
from mnt.fleet.login.destination import Destination
from mnt.fleet.login.failures import LoginCancelled, LoginFailure
from mnt.fleet.login.shared import Shared
from mnt.fleet.wire.process import OpenSshCommand
from mnt.fleet.wire.sshwords import ssh_argv
from mnt.inventory.model import Host


class OpenSshConnection(HostConnection):
    """Stands where a HostConnection does; `start` is what it can do. There is nothing to open."""

    def __init__(self, target: Host, shared: Shared | None = None) -> None:
        super().__init__(target, shared)
        self._closed = False
        self._running: list[OpenSshCommand] = []

    @property
    def key_logins(self) -> tuple[Destination, ...]:
        """None: ssh finds its keys by itself."""
        return ()

    def open(self) -> None:
        pass

    def _log_in(self) -> Transport:
        """Raises HostError: there is nothing but `start`."""
        raise HostError(self.target.name, "channel", "ssh runs one command a connection")

    def start(self, command: str, *, on_stderr: Callable[[bytes], object] | None = None) -> OpenSshCommand:
        """Start a command in an `ssh` of its own. Raises HostError: there is no ssh, or a gateway fails."""
        try:
            words = ssh_argv(self.target, self.timeouts, command, proxy=self._proxy())
            with self._opening:
                if self._closed:
                    raise LoginCancelled("connect")
                self._running.append(OpenSshCommand(self.target.name, words, on_stderr))
                return self._running[-1]
        except LoginFailure as failure:
            raise failure.of(self.target.name) from None

    def _proxy(self) -> str | None:
        """What ssh is to take for a connection; None: nothing, it connects by itself. Raises LoginFailure."""
        master = self._shared.masters.through(self.destination.jumps)
        return None if master is None else master.proxy_to(self.destination)

    def close(self) -> None:
        """End what runs."""
        with self._opening:
            self._closed = True
        for running in self._running:
            running.close()
