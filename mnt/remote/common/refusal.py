"""What a program on a host will not do, told to the head in a word and a way out."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """What is asked for cannot be done; `fix` says how to mend it."""

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def document(self) -> dict[str, Any]:
        """`{"message", "fix"}`: what a program answers as "refused"."""
        return {"message": self.message, "fix": self.fix}
