"""The hostfile that DeepSpeed reads: `node1 slots=8`, one line per host, the master first.

DeepSpeed (0.19, `deepspeed/launcher/runner.py`) reads lines `^(\\S+)\\s+slots=(\\d+)`, without ranges. It
passes the first word to pdsh and ssh, and compares it with `--include` and `--exclude`. So it is the host's
name, which must lead to the host on the machine where DeepSpeed runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mnt.errors import UsageError
from mnt.inventory.model import Host
from mnt.remote.common.files import replace_file, strerror


def render(hosts: Iterable[Host], slots: int | None = None) -> str:
    """The text of a hostfile.

    Args:
        hosts: in rank order.
        slots: processes per host; None: each host's own `slots`.
    """
    return "".join(f"{host.name} slots={host.slots if slots is None else slots}\n" for host in hosts)


def write(file: str, text: str) -> None:
    """Write `text` to `file`, completely or not at all. Raises UsageError if that fails."""
    target = Path(os.path.realpath(file))
    try:
        if target.exists() and not target.is_file():  # a pipe or /dev/null, which is not replaced
            target.write_text(text)
            return
        replace_file(target, text, mode=None)
    except OSError as error:
        raise UsageError(
            f"{file}: cannot be written: {strerror(error)}", fix="use -o with a file in a directory of yours"
        ) from None
