"""The problems that checks report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    """How bad a finding is. Only `fail` makes the preflight fail."""

    FAIL = "fail"
    WARN = "warn"
    INFO = "info"


@dataclass(frozen=True)
class Problem:
    """One problem that a check found, on one or more hosts.

    The texts do not name the affected hosts, so the same problem on sixty hosts is one finding.
    """

    message: str  # one line
    found: str
    expected: str
    fix: str  # in the style that mnt.errors describes
    severity: Severity | None = None  # None: the check's own
    hosts: tuple[str, ...] = ()  # empty in a `host_check`, which judges one host
    playbook: str | None = ""  # of `mnt setup`; empty: the check's own; None: it does not mend this one


@dataclass(frozen=True)
class Finding:
    """A problem, and the check that found it; also an entry of `findings` in the JSON document."""

    check: str
    severity: Severity
    hosts: tuple[str, ...]
    found: str
    expected: str
    message: str
    fix: str
    playbook: str | None = None  # of `mnt setup`, which mends it; None: there is none
