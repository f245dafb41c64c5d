"""How a change of the workdirs has ended on one host, from what it has answered. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mnt.errors import said
from mnt.fleet import Outcome

_COMMITTED = ("commit", "prune", "confirm")


@dataclass(frozen=True)
class Ending:
    """What is known of one host.

    `switching`: whether any host was asked to switch `current`.
    """

    host: str
    release: str  # that was to become current; "" if none was chosen
    reached: str | None  # the last step that it has completed; None: none
    outcome: Outcome[dict[str, Any]] | None  # of its receiver; None: nobody has waited for its end
    leads: bool  # it is the first host of its workdir, and so the one that switches `current` there
    was_current: bool  # `current` of its workdir already pointed to the release before
    switching: bool

    @property
    def answer(self) -> dict[str, Any] | None:
        """The last answer of its receiver; None: there was none."""
        return None if self.outcome is None else self.outcome.value

    @property
    def committed(self) -> bool:
        return self.reached in _COMMITTED

    def status(self, done: str) -> str:
        """A key of `mnt.push.result.STATUSES`; `done` is that of a host on which `current` was switched."""
        answer = self.answer
        if self.committed:
            # A host that only shares a workdir has not switched it, so its last answer counts.
            confirmed = self.leads if answer is None else answer["current"] == self.release
            if not confirmed:
                return "unknown"
            return "unchanged" if self.was_current else done
        if answer is None:
            return "unknown" if self.switching else "failed"
        if self.switching and answer["current"] == self.release and not self.was_current:
            return "switched"
        return "untouched" if answer["called_off"] else "failed"

    def problem(self, noun: str) -> tuple[str | None, str | None]:
        """The error of the host itself, and its fix; `noun` is what was done, for people."""
        if self.outcome is None:
            # After the commit nobody waits for its end.
            return (None if self.committed else f"it did not answer when the {noun} was cancelled"), None
        if self.outcome.error is not None:
            return f"{self.outcome.error.phase}: {self.outcome.error.reason}", self.outcome.error.advice
        answer = self.answer or {}
        refused = answer.get("refused")
        if refused is None or answer["called_off"]:
            return None, None
        return refused["message"], said(self.host, refused["fix"])
