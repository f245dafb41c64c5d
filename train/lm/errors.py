"""The only error that training raises on purpose."""

from __future__ import annotations


class TrainingError(Exception):
    """Something that a person can repair: printed in one line on stderr, and the process ends with code 1.

    Args:
        message: what is wrong, where, and how to repair it.
        on_all_ranks: every rank raises the same error, so only rank 0 prints it.
    """

    def __init__(self, message: str, *, on_all_ranks: bool = False) -> None:
        super().__init__(message)
        self.on_all_ranks = on_all_ranks
