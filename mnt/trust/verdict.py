"""The verdict on the host keys that a host presents. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mnt.errors import HostError, MntError
from mnt.fleet.login.hostkeys import HostKey, KnownKey

KNOWN = "known"  # the host presents a key that is recorded for it
NEW = "new"  # no key is recorded for the host
CHANGED = "changed"  # the host presents other keys than the recorded ones
REVOKED = "revoked"  # the host presents a key that known_hosts revokes
MISMATCH = "mismatch"  # the administrator's list has other keys for the host
UNLISTED = "unlisted"  # the administrator's list has no entry for the host
RECORDED = "recorded"  # its keys have been recorded now
REPLACED = "replaced"  # its keys have been recorded now, in place of other ones
UNREACHABLE = "unreachable"  # the host could not be scanned

# status -> message and fix
_PROBLEMS = {
    NEW: (
        "no host key is recorded; the host presents {shown}",
        "run mnt trust on a terminal; in a script use --fingerprints FILE, or --yes in a trusted network",
    ),
    CHANGED: (
        "the host key has changed: {old} is recorded, the host presents {shown}",
        "ask the administrator whether the host was reinstalled, and for its new fingerprint, because it may "
        "be another machine; then: mnt trust --replace",
    ),
    REVOKED: (
        "the host presents a key that known_hosts revokes: {shown}",
        "ask the administrator of the host to replace its host key",
    ),
    MISMATCH: (
        "the list has none of its keys: the host presents {shown}",
        "ask the author of the list for a current one; the host may also be another machine",
    ),
    UNLISTED: (
        "the list has no entry for this host; it presents {shown}",
        "ask the author of the list to add the host",
    ),
}


@dataclass(frozen=True)
class Verdict:
    """The verdict on one host."""

    status: str  # one of the above
    shown: tuple[HostKey, ...] = ()  # the keys that the host presents
    record: tuple[HostKey, ...] = ()  # the keys to record if the user agrees
    old: tuple[KnownKey, ...] = ()  # the lines that they replace
    error: HostError | None = None  # if it is unreachable

    @property
    def ok(self) -> bool:
        """Whether the host is trusted."""
        return self.status in (KNOWN, RECORDED, REPLACED)

    @property
    def open(self) -> bool:
        """Whether the user can accept the keys."""
        return self.status in (NEW, CHANGED)

    def problem(self, name: str) -> MntError:
        """Why the host is not trusted, and the fix."""
        if self.error is not None:
            return self.error
        shown = ", ".join(f"{key.type} {key.fingerprint}" for key in self.shown)
        old = ", ".join(f"{line.key.type} {line.key.fingerprint} ({line.place})" for line in self.old)
        message, fix = _PROBLEMS[self.status]
        return MntError(f"{name}: {message.format(shown=shown, old=old)}", fix=fix)

    def document(self) -> dict[str, Any]:
        """The JSON form of `mnt trust --json`."""
        return {
            "status": self.status,
            "keys": [_key(key) for key in self.shown],
            "old": [{**_key(line.key), "place": line.place} for line in self.old],
            "error": self.error.reason if self.error else None,
        }


def _key(key: HostKey) -> dict[str, str]:
    return {"type": key.type, "fingerprint": key.fingerprint}


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
