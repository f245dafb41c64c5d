"""Every error that `mnt` raises on purpose.

An error has a message, one line that says what is wrong and where, and a `fix` that says how to repair it.
Any other exception that escapes is a bug and shows its traceback.

The rule for fix texts, here and in the checks: an imperative sentence or a command to paste; it starts in
lower case (names and commands keep theirs), has no full stop at the end, and `; ` separates several steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

# Of a HostError, in their order in time. `connect` is TCP; `answer`: the answer is not valid.
Phase = Literal[
    "resolve",
    "connect",
    "banner",
    "key exchange",
    "host key",
    "authentication",
    "channel",
    "command",
    "answer",
]

_LONGEST = 4000  # characters of a message; a name or value of a file can have millions


class MntError(Exception):
    """Something went wrong that a person can repair.

    Args:
        message: one line; what is wrong, and where (file, line, host).
        fix: how to repair it; None if the message says enough.
        details: further lines, one for each host: no host can add to the line of another one.
    """

    exit_code = 1

    def __init__(self, message: str, *, fix: str | None = None, details: Sequence[str] = ()) -> None:
        if len(message) > _LONGEST:
            message = f"{message[:_LONGEST]}..."
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.details = tuple(details)

    @property
    def advice(self) -> str | None:
        """The fix for people."""
        return self.fix

    def document(self) -> dict[str, object]:
        """The error in a JSON document."""
        return {"message": self.message, "details": self.details, "fix": self.fix}


class UsageError(MntError):
    """The command line is not valid: exit code 2."""

    exit_code = 2


class InventoryError(UsageError):
    """The inventory is not valid. `file` and `line` (from 1) are the place, if it is known."""

    def __init__(
        self, message: str, *, file: str | None = None, line: int | None = None, fix: str | None = None
    ) -> None:
        where = "" if file is None else f"{file}:{line}: " if line is not None else f"{file}: "
        super().__init__(where + message, fix=fix)
        self.file = file
        self.line = line


class NeverStarted(MntError):
    """The launch failed before the job ran on any host, or was undone on all hosts: exit code 125.

    `host` is the first host because of which it failed; None: no host.
    """

    exit_code = 125

    def __init__(
        self, message: str, *, fix: str | None = None, details: Sequence[str] = (), host: str | None = None
    ) -> None:
        super().__init__(message, fix=fix, details=details)
        self.host = host

    @classmethod
    def because(cls, errors: Sequence[MntError], many: str, *, begin: str = "") -> NeverStarted:
        """One error for one or several, of which each has a line of its own.

        Args:
            many: what there are several of, `hosts failed`.
            begin: the beginning of the message.
        """
        first, alone = errors[0], len(errors) == 1
        return cls(
            begin + (first.message if alone else f"{len(errors)} {many}"),
            fix=next((error.advice for error in errors if error.fix), None),
            details=first.details if alone else [error.message for error in errors],
            host=getattr(first, "host", None),
        )


class OutputError(MntError):
    """The head cannot write what it must: standard output, standard error, a file of its own.

    Not for a broken pipe. It is no host's fault: where a task on a host raises it, all tasks end (`Fleet`).
    """


class HostError(MntError):
    """One host failed, in a named phase."""

    def __init__(
        self, host: str, phase: Phase, message: str, *, fix: str | None = None, said: bool = False
    ) -> None:
        super().__init__(f"{host}: {phase}: {message}", fix=fix)
        self.said = said
        self.host = host
        self.phase = phase
        self.reason = message

    @property
    def logged_in(self) -> bool:
        """Whether the login to the host had succeeded."""
        return self.phase in ("channel", "command", "answer")

    @property
    def connection_lost(self) -> bool:
        """Whether there is no connection to the host, or none any more; else what runs on it has failed."""
        return self.phase not in ("command", "answer")

    @property
    def advice(self) -> str | None:
        """The fix for people; the host's own text is shown as such."""
        return said(self.host, self.fix) if self.said else self.fix


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 host`, `3 hosts`: a number with its noun. `plural`: if that is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def said(host: str, fix: str | None) -> str | None:
    """A fix that a host names, as its own words: it may name any command to paste."""
    return fix and f"{host} says: {fix}"
