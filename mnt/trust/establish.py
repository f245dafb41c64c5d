"""Establish trust in hosts: scan, judge, ask, record; gateways before what lies behind them."""

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

# status -> what is wrong, and what to do
_PROBLEMS = {
    verdict.NEW: (
        "not recorded: it shows {shown}",
        "mnt trust on a terminal; in scripts --fingerprints FILE, or --yes where the network is yours",
    ),
    verdict.CHANGED: (
        "changed: recorded is {old}, the host shows {shown}",
        "it may be another machine: ask who looks after the host whether it was installed anew, and for its "
        "fingerprint; then: mnt trust --replace",
    ),
    verdict.REVOKED: (
        "it shows a key that known_hosts revokes: {shown}",
        "ask who looks after the host: this key is not to be used any more",
    ),
    verdict.MISMATCH: (
        "none of its keys is in the list: it shows {shown}",
        "it may be another machine, or the list may be old: ask who wrote the list",
    ),
    verdict.UNLISTED: ("the list does not have it; it shows {shown}", "ask who wrote the list"),
}

Consent = Callable[[Mapping[str, Verdict]], Iterable[str]]


@dataclass(frozen=True)
class Trust:
    """What became of a host. `status`: one of mnt.trust.verdict's, or of the above."""

    status: str
    verdict: Verdict | None = None
    error: HostError | None = None

    @property
    def ok(self) -> bool:
        return self.status in (verdict.KNOWN, RECORDED, REPLACED)

    def problem(self, name: str) -> MntError:
        """Why the host is not trusted, and what to do about it."""
        if self.error is not None:
            return self.error
        assert self.verdict is not None
        shown = ", ".join(f"{key.type} {key.fingerprint}" for key in self.verdict.shown)
        old = ", ".join(f"{line.key.type} {line.key.fingerprint} ({line.place})" for line in self.verdict.old)
        message, fix = _PROBLEMS[self.status]
        return MntError(f"{name}: {message.format(shown=shown, old=old)}", fix=fix)

    def document(self) -> dict[str, Any]:
        """As `mnt trust --json` prints it."""
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
    tell: Callable[[dict[str, Trust]], None],
) -> dict[str, Trust]:
    """Scan hosts, and the gateways that lead to them, and record what is agreed to.

    Args:
        listed: the administrator's fingerprints; None: there is no list.
        consent: is given what could be recorded, and says for which names it is to be; called once a wave.
        tell: is given each wave as it was found, before `consent` is asked.

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
            names = (
                None
                if listed is None
                else fingerprints.of({name, destination.key_name, destination.hostname}, listed)
            )
            judged = verdict.judge(keys, store.about(destination), names)
            found[name] = Trust(judged.status, judged)
        tell({name: found[name] for name in wave})
        asked = {name: trust.verdict for name, trust in found.items() if trust.verdict and trust.verdict.open}
        for name in consent(asked):
            found[name] = _record(store, wave[name], asked[name])
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
