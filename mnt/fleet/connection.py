"""A Fabric connection to a host of the inventory: `open` is ours, the rest is Fabric's."""

from __future__ import annotations

import threading
from typing import Any

import fabric
from paramiko.config import SSHConfig as NoSshConfig

from mnt.errors import HostError
from mnt.fleet.endpoint import Endpoint, resolve
from mnt.fleet.hostkeys import KnownHosts
from mnt.fleet.identities import Identities
from mnt.fleet.login import Cancelled, Failure, Login, login_error
from mnt.fleet.sshconfig import SshConfig
from mnt.fleet.timeouts import Timeouts
from mnt.fleet.transport import HostTransport
from mnt.inventory.model import Host

_LOGINS_AT_ONCE = 8  # at one server, or through one gateway; sshd's MaxStartups begins to drop at 10


class _Gateway:
    """One transport to a gateway, shared by every host behind it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.transport: HostTransport | None = None
        self.failure: tuple[Failure, str] | None = None  # and the name of the hop that failed


class Shared:
    """What the connections of one fleet share: known hosts, keys, ssh_config, gateways, limits on logins."""

    def __init__(self, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self.known_hosts = KnownHosts()
        self.identities = Identities()
        # Fabric would read ~/.ssh/config and trust whatever it finds there; we have read it already.
        self.fabric_config = fabric.Config(
            ssh_config=NoSshConfig(), overrides={"load_ssh_configs": False}, lazy=True
        )
        self._lock = threading.Lock()
        self._ssh_configs: dict[str | None, SshConfig] = {}
        self._gateways: dict[tuple[Endpoint, ...], _Gateway] = {}
        self._slots: dict[object, threading.BoundedSemaphore] = {}

    def endpoint(self, host: Host) -> Endpoint:
        """Raises UsageError for an ssh_config that cannot be used."""
        with self._lock:
            config = self._ssh_configs.get(host.ssh.config)
            if config is None:
                config = self._ssh_configs[host.ssh.config] = SshConfig(host.ssh.config)
        return resolve(host, config)

    def slot(self, endpoint: Endpoint) -> threading.BoundedSemaphore:
        """Held while logging in, so that no server and no gateway sees too many logins at once."""
        key = endpoint.jumps or (endpoint.hostname, endpoint.port)
        with self._lock:
            return self._slots.setdefault(key, threading.BoundedSemaphore(_LOGINS_AT_ONCE))

    def gateway(self, host: str, hops: tuple[Endpoint, ...]) -> HostTransport | None:
        """The transport of the last of `hops`, opened by the first host that asks. Raises HostError of `host`."""
        if not hops:
            return None
        with self._lock:
            gateway = self._gateways.setdefault(hops, _Gateway())
        with gateway.lock:
            if gateway.transport is not None and gateway.transport.is_active():
                return gateway.transport
            if gateway.failure is not None:
                raise login_error(host, *gateway.failure)
            via = self.gateway(host, hops[:-1])
            try:
                login = Login(hops[-1], self.timeouts, self.known_hosts, self.identities, via=via)
                gateway.transport = login.run()
            except Failure as failure:
                gateway.failure = (failure, hops[-1].name)
                raise login_error(host, *gateway.failure) from None
            return gateway.transport

    def close(self) -> None:
        with self._lock:
            gateways = list(self._gateways.values())
        for gateway in gateways:
            if gateway.transport is not None:
                gateway.transport.close()
        self.identities.close()


class HostConnection(fabric.Connection):  # type: ignore[misc]
    """A connection to `target`, a host of the inventory.

    What Fabric's own connection does (`run`, `put`, `get`, `sftp`, ..) works. `open` raises HostError with the
    phase that failed; it checks the host's key before anything is sent. Safe to open and close from several
    threads; may be opened again after it was closed.
    """

    # Invoke's contexts keep unknown attributes in their configuration; these are real ones.
    target: Host = None  # type: ignore[assignment]
    endpoint: Endpoint = None  # type: ignore[assignment]
    timeouts: Timeouts = None  # type: ignore[assignment]
    phase: str = "resolve"  # what is being done; `command` once logged in
    _shared: Shared = None  # type: ignore[assignment]
    _opening: Any = None
    _login: Login | None = None

    def __init__(self, target: Host, shared: Shared | None = None) -> None:
        """Raises UsageError for an ssh_config that cannot be used."""
        shared = shared or Shared(Timeouts())
        endpoint = shared.endpoint(target)
        super().__init__(
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

    def open(self) -> None:
        """Log in, if that was not done. Raises HostError."""
        if self.is_connected:
            return
        with self._opening:
            if not self.is_connected:
                self._log_in()

    def _log_in(self) -> None:
        shared, endpoint = self._shared, self.endpoint
        with shared.slot(endpoint):
            via = shared.gateway(self.target.name, endpoint.jumps)
            login = self._login = Login(
                endpoint,
                shared.timeouts,
                shared.known_hosts,
                shared.identities,
                via=via,
                on_phase=self._enter,
            )
            try:
                transport = login.run()
            except Failure as failure:
                raise login_error(self.target.name, failure) from None
            except Cancelled:
                raise HostError(self.target.name, self.phase, "given up: the connection was closed") from None
            finally:
                self._login = None
        self.client._transport = transport  # for Fabric's sftp
        self.transport = transport
        self.phase = "command"

    def _enter(self, phase: str) -> None:
        self.phase = phase

    def close(self) -> None:
        """Close the connection; what runs over it ends with a HostError. One that is being opened is given up."""
        login = self._login
        if login is not None:
            login.cancel()
        super().close()
