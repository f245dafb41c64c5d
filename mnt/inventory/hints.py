"""What is odd in an inventory, and yet valid. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from mnt.inventory.hostlist import brief

_REFERENCE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})")
_TEMPLATES = ("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",)  # torchrun fills in `${rank}`
_MOST = 20  # hints
_MOST_FOLDED = 10_000  # names
_LONGEST = 60  # characters of a value, and of a name


def unexpanded(environments: Iterable[tuple[str, Mapping[str, str]]]) -> list[str]:
    """A hint for each value with `$NAME` or `${NAME}`, which no shell expands.

    Args:
        environments: of hosts, each with the host's name.
    """
    known: dict[tuple[str, str], str | None] = {}  # most hosts have the same values: each is read once
    hosts: dict[str, list[str]] = {}
    for host, env in environments:
        for setting in env.items():
            if setting not in known:
                known[setting] = _unexpanded(*setting)
            if (hint := known[setting]) is not None:
                hosts.setdefault(hint, []).append(host)
    hints = [f"{_named(names)}: {hint}" for hint, names in list(hosts.items())[:_MOST]]
    more = len(hosts) - len(hints)
    return [*hints, *([f"{more} more values have a $ that no shell reads"] if more else [])]


def _unexpanded(name: str, value: str) -> str | None:
    found = None if name in _TEMPLATES else _REFERENCE.search(value)
    if found is None:
        return None
    reason = f"{_short(found[0])} is passed on as it is written, because no shell reads it"
    return f"{_short(name)}={_short(value)}: {reason}"


def _named(hosts: Sequence[str]) -> str:
    """To fold very many names takes seconds."""
    many = len(hosts) > _MOST_FOLDED
    return f"{hosts[0]} and {len(hosts) - 1:,} other hosts" if many else brief(hosts)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}.."
