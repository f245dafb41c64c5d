"""The administrator's list of fingerprints, with which `mnt trust` compares the keys of the hosts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from mnt.errors import UsageError
from mnt.paths import expanded
from mnt.remote.common.files import read_bytes, strerror

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")

_MOST_BYTES = 16 * 1024 * 1024  # a list of 100,000 keys has 7 MB
_MOST_LINES = 200_000

Listed = Mapping[str, frozenset[str]]  # host -> fingerprints


def read(path: str) -> Listed:
    """Read lines `HOST SHA256:...`. A host may have several lines, one per key; `#` begins a comment.

    HOST is the name in the inventory, or the address as in known_hosts. Raises UsageError with the line
    number.
    """
    try:
        text = read_bytes(expanded(path), _MOST_BYTES, any_kind=True).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = strerror(error) if isinstance(error, OSError) else "not a text file"
        raise UsageError(f"{path}: {problem}") from None
    if text.count("\n") > _MOST_LINES:
        raise UsageError(
            f"{path}: more than {_MOST_LINES:,} lines", fix="list only the hosts of the inventory"
        )
    found: dict[str, set[str]] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.partition("#")[0].split(maxsplit=2)
        if not words:
            continue
        if len(words) != 2 or not _FINGERPRINT.fullmatch(words[1]):
            fix = "write lines HOST SHA256:...; on HOST: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"
            raise UsageError(f"{path}:{number}: not a host and a fingerprint: {line.strip()!r}", fix=fix)
        found.setdefault(words[0], set()).add(words[1])
    if not found:
        raise UsageError(f"{path}: the file contains no fingerprints")
    return {host: frozenset(listed) for host, listed in found.items()}


def of(names: Iterable[str], listed: Listed) -> frozenset[str]:
    """The fingerprints in a list for a host with these names."""
    return frozenset().union(*(listed.get(name, frozenset()) for name in names))
