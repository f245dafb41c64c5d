"""Establish trust in hosts: scan, judge, ask, record. Gateways come before the hosts behind them.

A scan asks for the host keys on the same route as a login, but without logging in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from mnt.errors import HostError, MntError, UsageError
from mnt.fleet import Fleet, HostConnection, Results, Timeouts
from mnt.fleet.login.destination import Destination
from mnt.fleet.login.hostkeys import HostKey, KnownHosts
from mnt.fleet.login.shared import Shared
from mnt.inventory.model import Host, Ssh
from mnt.remote.common.files import strerror
from mnt.trust import fingerprints, verdict
from mnt.trust.fingerprints import Listed
from mnt.trust.verdict import Verdict

Consent = Callable[[Mapping[str, Verdict]], Iterable[str]]

# One connection for each kind, because a server presents one key per connection. In ssh's order.
_KINDS = (
    ("ssh-ed25519",),
    ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    ("rsa-sha2-512", "rsa-sha2-256"),
)

Destinations = Mapping[str, Destination]  # by the host's name, or by the gateway's name in known_hosts


def _waves(hosts: Iterable[Host]) -> list[Destinations]:
    """`hosts` and their gateways, in waves: each host is in a later wave than its gateways.

    Raises UsageError if the ssh_config is not valid.
    """
    shared = Shared(Timeouts())
    found: list[dict[str, Destination]] = []
    seen: set[str] = set()

    def add(name: str, destination: Destination) -> None:
        if destination.key_name in seen:
            return
        seen.add(destination.key_name)
        while len(found) <= len(destination.jumps):
            found.append({})
        found[len(destination.jumps)][name] = destination

    targets = [(host.name, shared.destination(host)) for host in hosts]
    for name, destination in targets:
        add(name, destination)
    for _, destination in targets:
        for index, hop in enumerate(destination.jumps):
            add(hop.key_name, replace(hop, jumps=destination.jumps[:index]))
    return [wave for wave in found if wave]


class _Scanner(HostConnection):
    """A connection that is never opened; only its gateways are logged in to."""

    def __init__(self, target: Host, shared: Shared, destination: Destination) -> None:
        super().__init__(target, shared)
        self.destination = destination

    def open(self) -> None:
        """Do nothing: there is no login."""

    @property
    def key_logins(self) -> tuple[Destination, ...]:
        return self.destination.jumps

    def keys(self) -> list[HostKey]:
        """One key of each kind that the host has. Raises HostError."""
        keys = [key for kind in _KINDS if (key := self.shown_key(kind)) is not None]
        if keys:
            return keys
        fix = "set HostKey in its sshd_config to an ed25519, ECDSA or RSA key"
        raise HostError(self.target.name, "key exchange", "no host key of a supported kind", fix=fix)


def _scan(destinations: Destinations) -> Results[list[HostKey]]:
    """The keys that servers present. This proves only that the servers have these keys.

    Gateways are logged in to, if their host keys are known.
    """

    def connect(host: Host, shared: Shared) -> HostConnection:
        destination = destinations[host.name]
        careful = tuple(replace(hop, strict=True) for hop in destination.jumps)
        return _Scanner(host, shared, replace(destination, jumps=careful))

    hosts = [
        Host(name, destination.hostname, Ssh(config=None, known_hosts=destination.known_hosts[0]))
        for name, destination in destinations.items()
    ]
    with Fleet(hosts, connect=connect) as fleet:
        return fleet.run(_Scanner.keys)


def establish(
    hosts: Iterable[Host],
    *,
    listed: Listed | None,
    consent: Consent,
    show: Callable[[dict[str, Verdict]], None],
) -> dict[str, Verdict]:
    """Scan hosts and their gateways, and record the keys that `consent` accepts.

    Args:
        listed: the administrator's fingerprints; None: there is no list.
        consent: gets the verdicts that can be accepted, and returns the names to accept; once per wave.
        show: gets the results of each wave before `consent` is called.

    Raises:
        MntError: known_hosts cannot be written.
    """
    store = KnownHosts()
    done: dict[str, Verdict] = {}
    for wave in _waves(hosts):
        results = _scan(wave)
        found = {name: Verdict(verdict.UNREACHABLE, error=error) for name, error in results.errors().items()}
        for name, keys in results.values_by_host().items():
            destination = wave[name]
            known_as = {name, destination.key_name, destination.hostname}
            vouched = None if listed is None else fingerprints.of(known_as, listed)
            try:
                found[name] = verdict.judge(keys, store.about(destination), vouched)
            except UsageError as error:  # of its known_hosts files
                failed = HostError(name, "host key", error.message, fix=error.fix)
                found[name] = Verdict(verdict.UNREACHABLE, error=failed)
        show({name: found[name] for name in wave})
        for name in consent({name: judged for name, judged in found.items() if judged.open}):
            found[name] = _record(store, wave[name], found[name])
        done |= {name: found[name] for name in wave}
    return done


def _record(store: KnownHosts, destination: Destination, judged: Verdict) -> Verdict:
    try:
        store.forget(destination.key_name, judged.old)
        for key in judged.record:
            store.record(destination.key_name, key, destination.known_hosts[0], hashed=destination.hash_names)
    except OSError as error:
        where = error.filename or destination.known_hosts[0]
        raise MntError(f"{where}: {strerror(error)}") from None
    return replace(judged, status=verdict.REPLACED if judged.old else verdict.RECORDED)
