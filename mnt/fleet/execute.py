"""A plain command on a host, run to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mnt.errors import HostError
from mnt.fleet.connection import HostConnection
from mnt.fleet.wire.channel import RemoteCommand
from mnt.fleet.wire.command import ReadTimeout, remaining

_OUTPUT_LIMIT = 1 << 26  # bytes of standard output that are kept for the caller


@dataclass(frozen=True)
class Completed:
    """A command that has ended. `stderr` is its end, at most 64 KiB; `exit_code` 128+N for a signal."""

    stdout: bytes
    stderr: str
    exit_code: int | None  # None: the host did not say


def execute(
    connection: HostConnection,
    command: str,
    *,
    stdin: Iterable[bytes] = (),
    timeout: float | None = None,
    on_stdout: Callable[[bytes], object] | None = None,
) -> Completed:
    """Run a command to its end; standard input ends after `stdin`.

    Args:
        command: for the login shell; quote what is data.
        timeout: seconds; None: `Timeouts.command`.
        on_stdout: takes each piece of standard output as it comes; `Completed.stdout` is then empty.
            Without it, more than 64 MiB are an error.

    Raises HostError: phase `command` when it takes too long; `answer` when it says too much; `channel` or an
    earlier one for want of a connection.
    """
    limit = connection.timeouts.command if timeout is None else timeout
    deadline = time.monotonic() + limit
    output = bytearray()
    take = output.extend if on_stdout is None else on_stdout
    with RemoteCommand(connection.target.name, connection.open_session(), command) as running:
        if stdin:
            running.write(stdin)
        running.end_input()
        try:
            while data := running.read(remaining(deadline)):  # some hosts never fall silent
                take(data)
                if len(output) > _OUTPUT_LIMIT:
                    raise HostError(running.host, "answer", f"more than {_OUTPUT_LIMIT >> 20} MiB of output")
        except ReadTimeout:
            raise HostError(running.host, "command", f"not done within {limit:g} s") from None
        return Completed(bytes(output), running.stderr, running.exit_code)
