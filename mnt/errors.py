"""Every error that `mnt` raises on purpose.

An error is for a tired person: one line that says what is wrong and where, and a `fix` that says how to
mend it. Anything else that escapes is a bug and shows its traceback.
"""

from __future__ import annotations


def strerror(error: BaseException) -> str:
    """What an exception says: where it is an OSError, the system's words without number and file name."""
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower() or type(error).__name__
    return str(error) or type(error).__name__


class MntError(Exception):
    """Something went wrong that a person can mend.

    Args:
        message: one line; what is wrong, and where (file, line, host).
        fix: how to mend it, as a sentence or a command to paste; None where there is nothing to add.
    """

    exit_code = 1

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class UsageError(MntError):
    """The command line asks for something that cannot be: exit code 2."""

    exit_code = 2


class InventoryError(UsageError):
    """The inventory cannot be used. `file` and `line` (from 1) say where, as far as they are known."""

    def __init__(
        self, message: str, *, file: str | None = None, line: int | None = None, fix: str | None = None
    ) -> None:
        where = "" if file is None else f"{file}:{line}: " if line is not None else f"{file}: "
        super().__init__(where + message, fix=fix)
        self.file = file
        self.line = line


class NeverStarted(MntError):
    """A launch that failed before the job ran anywhere, or was taken back everywhere: exit code 125."""

    exit_code = 125


class HostError(MntError):
    """One host failed, in a named phase.

    Phases, in the order in which they happen: `resolve`, `connect` (TCP), `banner`, `key exchange`,
    `host key`, `authentication`, `channel`, `command`, `answer` (what came back is not what was asked for).
    """

    def __init__(self, host: str, phase: str, message: str, *, fix: str | None = None) -> None:
        super().__init__(f"{host}: {phase}: {message}", fix=fix)
        self.host = host
        self.phase = phase
        self.reason = message
