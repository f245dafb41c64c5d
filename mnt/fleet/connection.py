"""A Fabric connection to a host of the inventory: `open` is ours, the rest is Fabric's."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from fabric.config import Config
from fabric.connection import Connection
from paramiko import ChannelException
from paramiko.config import SSHConfig as ParamikoConfig

from mnt.errors import HostError
from mnt.fleet.channel import RemoteCommand, RunningCommand
from mnt.fleet.endpoint import Endpoint, resolve
from mnt.fleet.failures import Cancelled, Failure
from mnt.fleet.gateways import Gateways
from mnt.fleet.hostkeys import HostKey, KnownHosts
from mnt.fleet.identities import Identities
from mnt.fleet.login import Login
from mnt.fleet.masters import Masters
from mnt.fleet.sshconfig import SshConfig
from mnt.fleet.timeouts import Timeouts
from mnt.fleet.transport import HostTransport
from mnt.inventory.model import Host

T = TypeVar("T")

_LOGINS_AT_ONCE = 8  # at one server, or through one gateway; sshd's MaxStartups begins to drop at 10


class Shared:
    """What the connections of one fleet share: known hosts, keys, ssh_config, gateways, a limit on logins."""

    def __init__(self, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self.gateways: Gateways[HostTransport] = Gateways(self.login)
        self.masters = Masters(timeouts)
        # Fabric would read ~/.ssh/config by itself, and the user's fabric.yml: neither is meant for us.
        self.fabric_config: Any = Config(  # type: ignore[no-untyped-call]
            ssh_config=ParamikoConfig(), overrides={"load_ssh_configs": False}, lazy=True
        )
        self._known_hosts = KnownHosts()
        self._identities = Identities()
        self._lock = threading.Lock()
        self._ssh_configs: dict[str | None, SshConfig] = {}
        self._slots: dict[object, threading.BoundedSemaphore] = {}

    def endpoint(self, host: Host) -> Endpoint:
        """Where to log in for a host. Raises UsageError for an ssh_config that cannot be used."""
        with self._lock:
            config = self._ssh_configs.get(host.ssh.config)
            if config is None:
                config = self._ssh_configs[host.ssh.config] = SshConfig(host.ssh.config)
        return resolve(host, config)

    def login(self, endpoint: Endpoint) -> Login:
        return Login(endpoint, self.timeouts, self._known_hosts, self._identities)

    def unlock(self, logins: Iterable[Endpoint]) -> None:
        """Ask for the passphrases that these logins need and nobody has; see Identities."""
        self._identities.unlock(dict.fromkeys(logins))

    def slot(self, endpoint: Endpoint) -> threading.BoundedSemaphore:
        """Held while logging in, so that no server and no gateway sees too many logins at once."""
        key = endpoint.jumps or (endpoint.hostname, endpoint.port)
        with self._lock:
            return self._slots.setdefault(key, threading.BoundedSemaphore(_LOGINS_AT_ONCE))

    def close(self) -> None:
        self.gateways.close()
        self.masters.close()
        self._identities.close()


class HostConnection(Connection):
    """A connection to `target`, a host of the inventory.

    What Fabric's own connection does (`run`, `put`, `get`, `sftp`, ..) works. `open` raises HostError with
    the phase that failed; it checks the host's key before anything is sent. Safe to open and close from
    several threads; may be opened again after it was closed.
    """

    # Invoke's contexts keep unknown attributes in their configuration, and look through all names at
    # each assignment, which takes 0.5 ms a connection. Here all attributes are real ones.
    def __setattr__(self, key: str, value: Any) -> None:
        object.__setattr__(self, key, value)

    target: Host = None  # type: ignore[assignment]
    endpoint: Endpoint = None  # type: ignore[assignment]
    timeouts: Timeouts = None  # type: ignore[assignment]
    _shared: Shared = None  # type: ignore[assignment]
    _opening: threading.Lock = None  # type: ignore[assignment]
    _further: list[HostTransport] = None  # type: ignore[assignment]
    _login: Login | None = None
    password: str | None = None  # to log in with, in place of keys; goes to no host whose key is not known

    def __init__(self, target: Host, shared: Shared | None = None) -> None:
        """Raises UsageError for an ssh_config that cannot be used."""
        shared = shared or Shared(Timeouts())
        endpoint = shared.endpoint(target)
        super().__init__(  # type: ignore[no-untyped-call]
            host=endpoint.hostname,
            user=endpoint.user,
            port=endpoint.port,
            config=shared.fabric_config,
            gateway=False,
        )
        self.target = target
        self.endpoint = endpoint
        self.timeouts = shared.timeouts
        self._shared = shared
        self._opening = threading.Lock()
        self._further = []

    @property
    def phase(self) -> str:
        """What is going on: the phase of the login, or `command`."""
        login = self._login
        return "command" if login is None else login.phase

    @property
    def logins(self) -> tuple[Endpoint, ...]:
        """The logins by key that `open` takes, those at gateways first."""
        return self.endpoint.jumps if self.password is not None else (*self.endpoint.jumps, self.endpoint)

    def open(self) -> None:
        """Log in, if that was not done. Raises HostError."""
        if self.is_connected:
            return
        with self._opening:
            if not self.is_connected:
                transport = self._log_in()
                client: Any = self.client
                client._transport = transport  # Fabric's sftp goes by it
                self._sftp = None  # of a connection that was lost
                self.transport = transport

    def open_session(self, timeout: float) -> Any:
        """A channel for a command, opened within `timeout` seconds.

        Where the host allows no more sessions on the connection that there is (MaxSessions of sshd_config, 10
        unless set), over a further one, which is kept for the next. Raises HostError, SSHException, OSError.
        """
        self.open()
        main: Any = self.transport
        for transport in [main, *(further for further in self._further if further.is_active())]:
            with contextlib.suppress(ChannelException):
                return transport.open_session(timeout=timeout)
        with self._opening:
            further = self._log_in()
            self._further.append(further)
        try:
            return further.open_session(timeout=timeout)
        except ChannelException:
            fix = "MaxSessions in its sshd_config: at least 1"
            raise HostError(self.target.name, "channel", "the host allows no session", fix=fix) from None

    def shown_key(self, algorithms: Sequence[str]) -> HostKey | None:
        """The host key of one of these algorithms that the host has; None: it has none.

        Nobody logs in, but at gateways. Raises HostError.
        """
        return self._attempt(lambda login, via: login.scan(via, algorithms))

    def _log_in(self) -> HostTransport:
        """A new transport. Raises HostError."""
        return self._attempt(lambda login, via: login.run(via, self.password))

    def _attempt(self, step: Callable[[Login, HostTransport | None], T]) -> T:
        name, shared = self.target.name, self._shared
        login = self._login = shared.login(self.endpoint)
        try:
            with shared.slot(self.endpoint):
                return step(login, shared.gateways.through(self.endpoint.jumps))
        except Failure as failure:
            raise HostError(name, failure.phase, failure.message, fix=failure.fix) from None
        except Cancelled:
            raise HostError(name, login.phase, "given up: the connection was closed") from None
        finally:
            self._login = None

    def start(self, command: str, *, on_stderr: Callable[[bytes], object] | None = None) -> RunningCommand:
        """Start a command; RemoteCommand says how. Raises HostError."""
        return RemoteCommand(self, command, on_stderr=on_stderr)

    def close(self) -> None:
        """Close the connection: what runs over it ends with a HostError, and so does `open` under way."""
        login = self._login
        if login is not None:
            login.cancel()
        while self._further:
            self._further.pop().close()
        with contextlib.suppress(EOFError, OSError):  # sftp says goodbye, and the host may be gone
            super().close()  # type: ignore[no-untyped-call]
