"""The results of a task on each host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mnt.errors import HostError

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The result of a task on one host: `value`, or `error` if it failed (`value` is then None)."""

    host: str
    value: T | None
    error: HostError | None
    seconds: float  # wall time, including the login

    @property
    def ok(self) -> bool:
        return self.error is None


class Results(dict[str, Outcome[T]]):
    """Outcomes by host name, in the order of the fleet's hosts."""

    @property
    def ok(self) -> bool:
        """Whether no host failed."""
        return not self.errors()

    def values_by_host(self) -> dict[str, T]:
        """What the task returned, for the hosts on which it did not fail."""
        return {host: outcome.value for host, outcome in self.items() if outcome.ok}  # type: ignore[misc]

    def errors(self) -> dict[str, HostError]:
        """The errors, for the hosts on which it failed."""
        return {host: outcome.error for host, outcome in self.items() if outcome.error is not None}


def raise_output_error(outcome: Outcome[Any]) -> None:
    """For `on_result`, if tasks print: end all tasks when nobody reads the output any more.

    Raises BrokenPipeError. A Fleet itself raises an OutputError.
    """
    cause = outcome.error.__cause__ if outcome.error else None
    if isinstance(cause, BrokenPipeError):
        raise cause
