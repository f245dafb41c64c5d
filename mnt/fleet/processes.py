"""Connections whose commands are processes of this machine: shells of its own, or OpenSSH's client.

They stand where a HostConnection does, but can only start commands: there is nothing to open.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable

from paramiko import Transport

from mnt.errors import HostError
from mnt.fleet.connection import HostConnection
from mnt.fleet.login.destination import Destination
from mnt.fleet.login.failures import LoginCancelled, LoginFailure
from mnt.fleet.login.shared import Shared
from mnt.fleet.wire.process import OpenSshCommand, ProcessCommand
from mnt.fleet.wire.sshwords import has_session_type, ssh_argv
from mnt.inventory.model import Host
from mnt.remote.common.files import strerror

_END_GRACE = 1.0  # seconds for a command to end once its input is closed
_OF_A_LOGIN = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG")  # the variables that sshd would set


class _ProcessConnection(HostConnection):
    """Base of both: remembers the running commands, so that `close` can end them."""

    def __init__(self, target: Host, shared: Shared | None = None) -> None:
        super().__init__(target, shared)
        self._running: list[ProcessCommand] = []

    @property
    def key_logins(self) -> tuple[Destination, ...]:
        """None: no key of ours is used."""
        return ()

    def open(self) -> None:
        """Do nothing."""

    def _log_in(self) -> Transport:
        """Raises HostError: there is nothing but `start`."""
        raise HostError(self.target.name, "channel", "each command has a process of its own, and no channel")

    def _keep(self, command: ProcessCommand) -> ProcessCommand:
        """`command`, which `close` will end. Called while `_opening` is held."""
        self._running = [running for running in self._running if running.exit_code is None]
        self._running.append(command)
        return command

    def close(self) -> None:
        """End the commands that run."""
        with self._opening:
            running, self._running = self._running, []
        for command in running:
            command.close()


class LocalConnection(_ProcessConnection):
    """This machine in place of a host: each command runs in a shell of its own."""

    def start(self, command: str, *, on_stderr: Callable[[bytes], object] | None = None) -> ProcessCommand:
        """Start a command in a shell of this machine, with the variables of a login. Raises HostError."""
        try:
            with self._opening:
                return self._keep(_LocalCommand(self.target.name, command, on_stderr))
        except OSError as error:
            raise HostError(self.target.name, "command", f"no shell starts: {strerror(error)}") from None


class _LocalCommand(ProcessCommand):
    """A command in a shell of this machine. Raises OSError if it cannot be started."""

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


class OpenSshConnection(_ProcessConnection):
    """OpenSSH's own client, for what paramiko cannot do: GSSAPI, hardware keys, certificates.

    Each command is an `ssh` with a connection of its own. It reads the user's ssh_config itself, and never
    asks for anything (BatchMode). The way through gateways is that of `login/masters.py`. After `close`
    nothing can be started.
    """

    _closed = False

    def start(self, command: str, *, on_stderr: Callable[[bytes], object] | None = None) -> ProcessCommand:
        """Start a command in an `ssh` of its own. Raises HostError: there is no ssh, or a gateway fails."""
        words = self.words(command)
        try:
            with self._opening:
                if self._closed:
                    raise LoginCancelled("connect")
                return self._keep(OpenSshCommand(self.target.name, words, on_stderr))
        except LoginFailure as failure:
            raise failure.of(self.target.name) from None

    def words(self, command: str, *, terminal: bool = False) -> list[str]:
        """The command line of an `ssh` that runs a command. Raises HostError: a gateway fails.

        It works until `close`.

        Args:
            terminal: give the command a terminal.
        """
        try:
            master = self._shared.masters.through(self.destination.jumps)
            proxy = None if master is None else master.proxy_to(self.destination)
            return ssh_argv(
                self.target,
                self.timeouts,
                command,
                proxy=proxy,
                strict=self.destination.strict,
                newer=has_session_type(),
                terminal=terminal,
            )
        except LoginFailure as failure:
            raise failure.of(self.target.name) from None

    def close(self) -> None:
        with self._opening:
            self._closed = True
        super().close()
