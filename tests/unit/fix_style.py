"""The rule of mnt/errors.py for fix texts, as far as a program can see it. `fleets.judged` applies it."""

from __future__ import annotations

import re

_VERBS = """
accept add allow ask bring check compare configure copy correct create decide delete end exclude find fix
give if install make mount move name open print push put reboot reinstall remove replace reseat run select
send set start switch train upgrade use when
"""
_COMMANDS = "apt-get chmod echo ip ls mnt nvidia-smi pip rm ssh ssh-keygen sudo"
STARTS = frozenset([*_VERBS.split(), *_COMMANDS.split()])
LEADS = ("for Reset: ", "in /etc/hosts, ", "in ~/.bashrc, ", "on ")  # a place or a case, then the imperative
FORBIDDEN = re.compile(r"\?|\b(you|your|please|should|might|would|mend|see)\b", re.IGNORECASE)


def complaint(fix: str) -> str | None:
    """What is wrong with the style of a fix text; None: nothing."""
    found = FORBIDDEN.search(fix)
    if found:
        return f"says {found[0]!r}"
    if fix.endswith(".") or ". " in fix:
        return "has a full stop"
    first = fix.partition(" ")[0].rstrip(",;:")
    if first in STARTS or "/" in first or fix.startswith(LEADS):
        return None
    return f"begins with {first!r}: neither an imperative nor a command"
