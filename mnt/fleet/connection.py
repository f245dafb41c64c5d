"""A connection to a host of the inventory, over paramiko."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

from fabric.config import Config
from fabric.connection import Connection
from paramiko import Channel, ChannelException, SSHConfig, Transport

from mnt.errors import HostError
from mnt.fleet.login.destination import Destination
from mnt.fleet.login.failures import LoginFailure
from mnt.fleet.login.hostkeys import HostKey
from mnt.fleet.login.login import Login
from mnt.fleet.login.shared import Shared
from mnt.fleet.wire.channel import CHANNEL_ERRORS, RemoteCommand, cause_of, open_session
from mnt.fleet.wire.command import RunningCommand
from mnt.fleet.wire.timeouts import Timeouts
from mnt.fleet.wire.transport import HostTransport
from mnt.inventory.model import Host

T = TypeVar("T")


class HostConnection:
    """A connection to `target`, a host of the inventory; `open` logs in, or the first command does.

    The host's key is checked before anything is sent. Safe to open and close from several threads; it may be
    opened again after it was closed or lost.

    Args:
        shared: what the connections of a fleet share.
        password: to log in with, in place of keys; it is sent to no host whose key is not known.

    Raises UsageError for an ssh_config that cannot be used.
    """

    def __init__(self, target: Host, shared: Shared | None = None, *, password: str | None = None) -> None:
        self._shared = shared or Shared(Timeouts())
        self.target = target
        self.destination = self._shared.destination(target)
        self.timeouts = self._shared.timeouts
        self._password = password
        self._opening = threading.RLock()
        self._login: Login | None = None  # the one under way
        self._transports: list[Transport] = []

    @property
    def key_logins(self) -> tuple[Destination, ...]:
        """The servers at which `open` logs in by key, gateways first."""
        gateways = self.destination.jumps
        return gateways if self._password is not None else (*gateways, self.destination)

    @property
    def is_connected(self) -> bool:
        return bool(self._active())

    def open(self) -> None:
        """Log in, unless that is done. Raises HostError."""
        self._transport()

    @cached_property
    def fabric(self) -> Connection:
        """This connection as Fabric's, for its `run`, `put`, `get`, `sftp`, and for Fabric tasks."""
        return _FabricConnection(self)

    def open_session(self) -> Channel:
        """A channel for a command; requests on it fail (OSError) after `Timeouts.channel` without an answer.

        If the host allows no more sessions on the connection (MaxSessions of sshd_config, 10 by default), a
        further connection carries it, which is kept for later sessions. Raises HostError.
        """
        try:
            self._transport()
            for transport in self._active():
                with contextlib.suppress(ChannelException):
                    return open_session(transport, self.timeouts.channel)
            return open_session(self._add_transport(), self.timeouts.channel)
        except ChannelException:
            fix = "set MaxSessions in its sshd_config to at least 1"
            raise HostError(self.target.name, "channel", "the host allows no session", fix=fix) from None
        except CHANNEL_ERRORS as error:
            raise HostError(self.target.name, "channel", f"no session: {cause_of(error)}") from error

    def start(self, command: str, *, on_stderr: Callable[[bytes], object] | None = None) -> RunningCommand:
        """Start a command; `on_stderr` is RemoteCommand's. Raises HostError."""
        return RemoteCommand(self.target.name, self.open_session(), command, on_stderr=on_stderr)

    def shown_key(self, algorithms: Sequence[str]) -> HostKey | None:
        """The host's key of one of these algorithms; None: it has none.

        There is no login, except at gateways. Raises HostError.
        """
        return self._attempt(lambda login, via: login.scan(via, algorithms))

    def close(self) -> None:
        """Close the connection: commands that run over it, and a login in progress, end with a HostError."""
        login = self._login
        if login is not None:
            login.cancel()
        transports, self._transports = self._transports, []
        for transport in transports:
            transport.close()

    def _active(self) -> list[Transport]:
        return [transport for transport in self._transports if transport.is_active()]

    def _transport(self) -> Transport:
        """An open one, after a login if necessary. Raises HostError."""
        if active := self._active():
            return active[0]
        with self._opening:
            active = self._active()
            return active[0] if active else self._add_transport()

    def _add_transport(self) -> Transport:
        """One more. Raises HostError."""
        with self._opening:
            transport = self._log_in()
            self._transports = [*self._active(), transport]
            return transport

    def _log_in(self) -> Transport:
        """A new transport. Raises HostError."""
        return self._attempt(lambda login, via: login.run(via, self._password))

    def _attempt(self, step: Callable[[Login, HostTransport | None], T]) -> T:
        shared = self._shared
        login = self._login = shared.login(self.destination)
        try:
            with shared.slot(self.destination):
                return step(login, shared.gateways.through(self.destination.jumps))
        except LoginFailure as failure:
            raise failure.of(self.target.name) from None
        finally:
            self._login = None


class _FabricConnection(Connection):
    """A HostConnection with Fabric's interface. Fabric does not log in, because it checks no host keys."""

    _connection: Any = None  # declared here, because otherwise Invoke would keep it in its configuration

    def __init__(self, connection: HostConnection) -> None:
        destination = connection.destination
        # By default Fabric reads ~/.ssh/config and the user's fabric.yml: neither is meant for us.
        config = Config(ssh_config=SSHConfig(), lazy=True)
        where = (destination.hostname, destination.user, destination.port)
        super().__init__(*where, config, gateway=False)  # type: ignore[no-untyped-call]
        self._connection = connection

    def open(self) -> None:
        if not self.is_connected:
            self._sftp = None  # it belongs to a connection that was lost
            client: Any = self.client
            client._transport = self.transport = self._connection._transport()
