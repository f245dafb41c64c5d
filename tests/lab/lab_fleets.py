"""Fleets over a lab's hosts, and plain commands over their connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from waiting import PATIENCE

from mnt.errors import HostError
from mnt.fleet import Fleet, HostConnection, Timeouts
from mnt.fleet.wire.command import ReadTimeout, remaining
from mnt.inventory import loader
from mnt.inventory.model import Host
from mnt.lab.lab import Lab


def hosts_of(lab: Lab, **ssh: Any) -> list[Host]:
    """The hosts of the lab's inventory; keywords replace what it says of `ssh`."""
    return [
        replace(host, ssh=replace(host.ssh, **ssh)) for host in loader.load(str(lab.inventory_path)).hosts
    ]


def fleet_of(lab: Lab, *, timeouts: Timeouts | None = None, **ssh: Any) -> Fleet:
    return Fleet(hosts_of(lab, **ssh), timeouts=timeouts or Timeouts())


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
    timeout: float = PATIENCE,
    on_stdout: Callable[[bytes], object] | None = None,
) -> Completed:
    """Run a command of the login shell to its end, within `timeout` seconds. Raises HostError.

    Args:
        stdin: its standard input.
        on_stdout: takes each piece of standard output as it comes; `Completed.stdout` is then empty.
    """
    deadline = time.monotonic() + timeout
    output = bytearray()
    take = output.extend if on_stdout is None else on_stdout
    with connection.start(command) as running:
        running.write(stdin)
        running.end_input()
        try:
            while data := running.read(remaining(deadline)):
                take(data)
        except ReadTimeout:
            raise HostError(running.host, "command", f"not done within {timeout:g} s") from None
        return Completed(bytes(output), running.stderr, running.exit_code)
