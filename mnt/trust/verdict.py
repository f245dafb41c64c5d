"""The verdict on the host keys that a host presents. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mnt.fleet.login.hostkeys import HostKey, KnownKey

KNOWN = "known"  # the host presents a key that is recorded for it
NEW = "new"  # no key is recorded for the host
CHANGED = "changed"  # the host presents other keys than the recorded ones
REVOKED = "revoked"  # the host presents a key that known_hosts revokes
MISMATCH = "mismatch"  # the administrator's list has other keys for the host
UNLISTED = "unlisted"  # the administrator's list has no entry for the host


@dataclass(frozen=True)
class Verdict:
    """The verdict on one host."""

    status: str  # one of the above
    shown: tuple[HostKey, ...]  # the keys that the host presents
    record: tuple[HostKey, ...] = ()  # the keys to record if the user agrees
    old: tuple[KnownKey, ...] = ()  # the lines that they replace

    @property
    def open(self) -> bool:
        """Whether the user can accept the keys."""
        return self.status in (NEW, CHANGED)


def judge(shown: Sequence[HostKey], known: Sequence[KnownKey], listed: frozenset[str] | None) -> Verdict:
    """Compare the keys that a host presents with the recorded keys and with the administrator's list.

    Args:
        shown: the keys of the host, of different types.
        known: the lines for the host in the known_hosts files.
        listed: the fingerprints for the host in the list; None: there is no list.
    """
    keys = tuple(shown)
    if any(line.revoked and line.key in keys for line in known):
        return Verdict(REVOKED, keys)
    good = [line for line in known if not line.revoked]
    vouched = keys if listed is None else tuple(key for key in keys if key.fingerprint in listed)
    if not vouched:
        return Verdict(MISMATCH if listed else UNLISTED, keys, old=tuple(good))
    recorded = {line.key for line in good}
    if not recorded:
        return Verdict(NEW, keys, record=vouched)
    types = {key.type for key in recorded}
    contradicted = any(key.type in types and key not in recorded for key in keys)
    if recorded & set(vouched) and not contradicted:
        return Verdict(KNOWN, keys)
    old = tuple(line for line in good if line.key not in keys)
    return Verdict(CHANGED, keys, record=tuple(key for key in vouched if key not in recorded), old=old)
