"""What checks say."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Severity(str, Enum):
    """How bad a finding is: `fail` makes preflight answer no, `warn` and `info` do not."""

    FAIL = "fail"
    WARN = "warn"
    INFO = "info"


@dataclass(frozen=True)
class Problem:
    """What a check yields: one thing that is wrong, on one or more hosts.

    The texts name no host, so that the same problem on sixty hosts is one finding.
    """

    hosts: tuple[str, ...]
    message: str  # one line
    found: str
    expected: str
    fix: str  # to paste, or one sentence
    severity: Severity | None = None  # None: the check's own


@dataclass(frozen=True)
class Finding:
    """A problem, and the check that found it."""

    check: str
    severity: Severity
    hosts: tuple[str, ...]
    found: str
    expected: str
    message: str
    fix: str

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "check": self.check,
            "severity": self.severity.value,
            "hosts": list(self.hosts),
            "found": self.found,
            "expected": self.expected,
            "message": self.message,
            "fix": self.fix,
        }
