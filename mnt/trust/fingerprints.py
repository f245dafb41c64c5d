"""The administrator's list of fingerprints, against which `mnt trust` compares what hosts show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from mnt.errors import UsageError

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")

Listed = Mapping[str, frozenset[str]]  # host -> fingerprints


def read(path: str) -> Listed:
    """A file of lines `HOST SHA256:...`, as many a host as it has keys; `#` begins a comment.

    HOST is the name in the inventory, or the address as in known_hosts. Raises UsageError, with the line.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or 'not a text'}".lower()) from None
    found: dict[str, frozenset[str]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not _FINGERPRINT.fullmatch(words[1]):
            fix = "a line is HOST SHA256:..., as ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub says there"
            raise UsageError(f"{path}:{number}: not a host and a fingerprint: {line.strip()!r}", fix=fix)
        found[words[0]] = found.get(words[0], frozenset()) | {words[1]}
    if not found:
        raise UsageError(f"{path}: no fingerprints in it")
    return found


def of(names: Iterable[str], listed: Listed) -> frozenset[str]:
    """The fingerprints that a list has for a host, by any of its names."""
    return frozenset().union(*(listed.get(name, frozenset()) for name in names))
