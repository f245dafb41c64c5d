"""One node of a job, as its entry has it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mnt.tasks.job import JobEntry, Reason


@dataclass(frozen=True)
class Node:
    """One node of a job.

    Its state is the entry's, or `unreachable`, `absent` (never started there), or `unknown` (not asked).
    """

    host: str
    node_rank: int
    state: str
    entry: JobEntry | None = None
    clock_offset: float = 0.0  # seconds that the host's clock is ahead of the head's

    @property
    def exit_code(self) -> int | None:
        return None if self.entry is None else self.entry["exit_code"]

    @property
    def subset(self) -> str | None:
        """The selected GPUs or slots of the host: `0,1`; None: all, or not known."""
        return self.entry.get("subset") if self.entry else None

    @property
    def rebooted(self) -> bool:
        """Whether it is lost because its host has been booted since the job was started."""
        return self.state == "lost" and bool(self.entry and self.entry.get("rebooted"))

    @property
    def reason(self) -> Reason:
        """Why mnt ended the node. Empty if it did not."""
        return (self.entry["reason"] if self.entry else None) or {}
