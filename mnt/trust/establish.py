"""Establish trust in hosts: scan, judge, ask, record. Gateways come before the hosts behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mnt.errors import HostError, MntError, strerror
from mnt.fleet.login.destination import Destination
from mnt.fleet.login.hostkeys import HostKey, KnownHosts
from mnt.inventory.model import Host
from mnt.trust import fingerprints, verdict
from mnt.trust.fingerprints import Listed
from mnt.trust.scan import scan, waves
from mnt.trust.verdict import Verdict

RECORDED = "recorded"
REPLACED = "replaced"
UNREACHABLE = "unreachable"

# status -> message and fix
_PROBLEMS = {
    verdict.NEW: (
        "no host key is recorded; the host presents {shown}",
        "run mnt trust on a terminal; in a script use --fingerprints FILE, or --yes in a trusted network",
    ),
    verdict.CHANGED: (
        "the host key has changed: {old} is recorded, the host presents {shown}",
        "ask the administrator whether the host was reinstalled, and for its new fingerprint, because it may "
        "be another machine; then: mnt trust --replace",
    ),
    verdict.REVOKED: (
        "the host presents a key that known_hosts revokes: {shown}",
        "ask the administrator of the host to replace its host key",
    ),
    verdict.MISMATCH: (
        "the list has none of its keys: the host presents {shown}",
        "ask the author of the list for a current one; the host may also be another machine",
    ),
    verdict.UNLISTED: (
        "the list has no entry for this host; it presents {shown}",
        "ask the author of the list to add the host",
    ),
}

Consent = Callable[[Mapping[str, Verdict]], Iterable[str]]


@dataclass(frozen=True)
class Trust:
    """The result for one host."""

    status: str  # a status of mnt.trust.verdict, or RECORDED, REPLACED or UNREACHABLE
    verdict: Verdict | None = None
    error: HostError | None = None

    @property
    def ok(self) -> bool:
        return self.status in (verdict.KNOWN, RECORDED, REPLACED)

    def problem(self, name: str) -> MntError:
        """Why the host is not trusted, and the fix."""
        if self.error is not None:
            return self.error
        assert self.verdict is not None
        shown = ", ".join(f"{key.type} {key.fingerprint}" for key in self.verdict.shown)
        old = ", ".join(f"{line.key.type} {line.key.fingerprint} ({line.place})" for line in self.verdict.old)
        message, fix = _PROBLEMS[self.status]
        return MntError(f"{name}: {message.format(shown=shown, old=old)}", fix=fix)

    def document(self) -> dict[str, Any]:
        """The JSON form of `mnt trust --json`."""
        found = self.verdict
        return {
            "status": self.status,
            "keys": [_key(key) for key in found.shown] if found else [],
            "old": [{**_key(line.key), "place": line.place} for line in found.old] if found else [],
            "error": self.error.reason if self.error else None,
        }


def _key(key: HostKey) -> dict[str, str]:
    return {"type": key.type, "fingerprint": key.fingerprint}


def establish(
    hosts: Iterable[Host],
    *,
    listed: Listed | None,
    consent: Consent,
    show: Callable[[dict[str, Trust]], None],
) -> dict[str, Trust]:
    """Scan hosts and their gateways, and record the keys that `consent` accepts.

    Args:
        listed: the administrator's fingerprints; None: there is no list.
        consent: gets the verdicts that can be accepted, and returns the names to accept; once per wave.
        show: gets the results of each wave before `consent` is called.

    Raises:
        MntError: known_hosts cannot be written.
    """
    store = KnownHosts()
    done: dict[str, Trust] = {}
    for wave in waves(hosts):
        results = scan(wave)
        found = {name: Trust(UNREACHABLE, error=error) for name, error in results.errors().items()}
        for name, keys in results.values_by_host().items():
            destination = wave[name]
            known_as = {name, destination.key_name, destination.hostname}
            vouched = None if listed is None else fingerprints.of(known_as, listed)
            judged = verdict.judge(keys, store.about(destination), vouched)
            found[name] = Trust(judged.status, judged)
        show({name: found[name] for name in wave})
        open_verdicts = {
            name: trust.verdict for name, trust in found.items() if trust.verdict and trust.verdict.open
        }
        for name in consent(open_verdicts):
            found[name] = _record(store, wave[name], open_verdicts[name])
        done |= {name: found[name] for name in wave}
    return done


def _record(store: KnownHosts, destination: Destination, judged: Verdict) -> Trust:
    try:
        store.forget(destination.key_name, judged.old)
        for key in judged.record:
            store.record(destination.key_name, key, destination.known_hosts[0], hashed=destination.hash_names)
    except OSError as error:
        where = error.filename or destination.known_hosts[0]
        raise MntError(f"{where}: {strerror(error)}") from None
    return Trust(REPLACED if judged.old else RECORDED, judged)
