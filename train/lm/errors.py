"""The one error that training raises on purpose."""

from __future__ import annotations


class TrainingError(Exception):
    """Something that a person can mend, told in one line on stderr; the process ends with code 1.

    Args:
        message: what is wrong, where, and how to mend it.
        told_by_all: every rank raises the same error, so one of them (rank 0) is enough to tell it.
    """

    def __init__(self, message: str, *, told_by_all: bool = False) -> None:
        super().__init__(message)
        self.told_by_all = told_by_all
