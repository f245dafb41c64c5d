"""Run the commands of a scheduler on a host that has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypedDict

from msgspec import Meta

from mnt.fleet import HostConnection
from mnt.tasks.program import run_program
from mnt.tasks.shape import ExitCode, shaped

_Output = Annotated[str, Meta(max_length=96 * 1024)]


class Ran(TypedDict):
    """How a command has ended; 124: not in time, 127: the host does not have it."""

    code: ExitCode
    out: _Output
    err: _Output


def ask_scheduler(
    connection: HostConnection, argv: Sequence[str], given: str = "", *, timeout: float = 20.0
) -> Ran:
    """Run a command with this text as its input, for at most `timeout` seconds. Raises HostError."""
    args = {"argv": list(argv), "input": given, "timeout": timeout}
    answer = run_program(connection, "scheduler.ask", args, timeout=timeout + 30)
    return shaped(connection.target.name, answer, Ran)
