"""What the keys that a host shows are worth: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mnt.fleet.login.hostkeys import HostKey, KnownKey

KNOWN = "known"  # it shows a key that is recorded for it
NEW = "new"  # nothing is recorded for it
CHANGED = "changed"  # it shows other keys than those recorded for it
REVOKED = "revoked"  # it shows a key that known_hosts revokes
MISMATCH = "mismatch"  # it shows no key that the administrator's list has for it
UNLISTED = "unlisted"  # the administrator's list does not have it


@dataclass(frozen=True)
class Verdict:
    """`record`: keys that may be recorded, if somebody agrees; `old`: lines that they would replace."""

    status: str
    shown: tuple[HostKey, ...]
    record: tuple[HostKey, ...] = ()
    old: tuple[KnownKey, ...] = ()

    @property
    def open(self) -> bool:
        """Whether somebody's agreement would make the host trusted."""
        return self.status in (NEW, CHANGED)


def judge(shown: Sequence[HostKey], known: Sequence[KnownKey], listed: frozenset[str] | None) -> Verdict:
    """Compare what a host shows with what is recorded, and with the administrator's list.

    Args:
        shown: its keys, of different types.
        known: the lines of known_hosts files that speak of it.
        listed: the fingerprints that the list has for it; None: there is no list.
    """
    keys = tuple(shown)
    if any(line.revoked and line.key in keys for line in known):
        return Verdict(REVOKED, keys)
    good = [line for line in known if not line.revoked]
    vouched = keys if listed is None else tuple(key for key in keys if key.fingerprint in listed)
    if not vouched:
        return Verdict(MISMATCH if listed else UNLISTED, keys, old=tuple(good))
    recorded = {line.key for line in good}
    if recorded and not (recorded & set(vouched) and not _contradicted(keys, good)):
        old = tuple(line for line in good if line.key not in keys)
        return Verdict(CHANGED, keys, record=tuple(key for key in vouched if key not in recorded), old=old)
    return Verdict(KNOWN, keys) if recorded else Verdict(NEW, keys, record=vouched)


def _contradicted(shown: Sequence[HostKey], known: Sequence[KnownKey]) -> bool:
    """Whether the host shows a key of a type of which only others are recorded for it."""
    recorded = {line.key for line in known}
    types = {line.key.type for line in known}
    return any(key.type in types and key not in recorded for key in shown)
