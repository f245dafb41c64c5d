"""What all logins of a fleet share."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from mnt.fleet.login.destination import Destination, resolve
from mnt.fleet.login.gateways import Gateways
from mnt.fleet.login.hostkeys import KnownHosts
from mnt.fleet.login.identities import Identities
from mnt.fleet.login.login import Login
from mnt.fleet.login.masters import Master
from mnt.fleet.login.own import check_own
from mnt.fleet.login.sshconfig import SshConfig
from mnt.fleet.wire.timeouts import Timeouts
from mnt.fleet.wire.transport import HostTransport
from mnt.inventory.model import Host, Ssh
from mnt.paths import expanded

_LOGINS_AT_ONCE = 8  # at one server, or through one gateway; sshd's MaxStartups begins to drop at 10


class Shared:
    """Known hosts, keys, ssh_config, gateways, and a limit on simultaneous logins. Thread-safe."""

    def __init__(self, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self.gateways: Gateways[HostTransport] = Gateways(self.login)
        self.masters = Gateways(lambda destination: Master(destination, timeouts), for_good=True)
        self._known_hosts = KnownHosts()
        self._identities = Identities()
        self._lock = threading.Lock()
        self._ssh_configs: dict[str | None, SshConfig] = {}
        self._judged: set[str] = set()  # known_hosts files that were judged
        self._slots: dict[object, threading.BoundedSemaphore] = {}

    def destination(self, host: Host) -> Destination:
        """Where and how to log in to a host.

        Raises UsageError for an ssh_config that cannot be used, and for an ssh_config or a known_hosts file
        that another user could have written. A known_hosts file that cannot exist only prevents the login.
        """
        with self._lock:
            config = self._ssh_configs.get(host.ssh.config)
            if config is None:
                config = self._ssh_configs[host.ssh.config] = SshConfig(host.ssh.config)
        destination = resolve(host, config)
        for each in (*destination.jumps, destination):
            files = (*each.known_hosts, *each.known_hosts_global)
            if Ssh.known_hosts in files:
                files += (f"{Ssh.known_hosts}2",)  # which ssh itself reads
            for file in files:
                if file not in self._judged:
                    self._judge(file)
                    self._judged.add(file)
        return destination

    def _judge(self, file: str) -> None:
        """Raises UsageError for a known_hosts file that another user could have written."""
        try:
            expanded(file)
        except OSError as error:
            self._known_hosts.refuse(file, error)
        else:
            check_own(file)

    def login(self, destination: Destination) -> Login:
        return Login(destination, self.timeouts, self._known_hosts, self._identities)

    def unlock(self, logins: Iterable[Destination]) -> None:
        """Ask for the passphrases that these logins need; see Identities."""
        self._identities.unlock(dict.fromkeys(logins))

    def slot(self, destination: Destination) -> threading.BoundedSemaphore:
        """To be held during a login, so that no server and no gateway gets too many logins at once."""
        key = destination.jumps or (destination.hostname, destination.port)
        with self._lock:
            return self._slots.setdefault(key, threading.BoundedSemaphore(_LOGINS_AT_ONCE))

    def close(self) -> None:
        self.gateways.close()
        self.masters.close()
        self._identities.close()
