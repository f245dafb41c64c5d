"""Establish trust in hosts: scan, judge, ask, record. Gateways come before the hosts behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from mnt.errors import MntError
from mnt.fleet.login.destination import Destination
from mnt.fleet.login.hostkeys import KnownHosts
from mnt.inventory.model import Host
from mnt.remote.common.files import strerror
from mnt.trust import fingerprints, verdict
from mnt.trust.fingerprints import Listed
from mnt.trust.scan import scan, waves
from mnt.trust.verdict import Verdict

Consent = Callable[[Mapping[str, Verdict]], Iterable[str]]


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
    for wave in waves(hosts):
        results = scan(wave)
        found = {name: Verdict(verdict.UNREACHABLE, error=error) for name, error in results.errors().items()}
        for name, keys in results.values_by_host().items():
            destination = wave[name]
            known_as = {name, destination.key_name, destination.hostname}
            vouched = None if listed is None else fingerprints.of(known_as, listed)
            found[name] = verdict.judge(keys, store.about(destination), vouched)
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
