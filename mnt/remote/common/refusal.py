"""The error of a program on a host that cannot do what was asked."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """What was asked for is not possible; `fix` is the instruction that solves the problem."""

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def document(self) -> dict[str, Any]:
        """`{"message", "fix"}`, which a program answers as "refused"."""
        return {"message": self.message, "fix": self.fix}
