"""The hostfile that DeepSpeed reads: `node1 slots=8`, a host a line, the master first.

DeepSpeed (0.19, `deepspeed/launcher/runner.py`) takes a line for `^(\\S+)\\s+slots=(\\d+)` and knows no
ranges. It hands the first word to pdsh and ssh, and to `--include` and `--exclude`; so that is the host's
name, and the name must mean the host where DeepSpeed runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mnt.errors import UsageError
from mnt.files import replace_file
from mnt.inventory.model import Host


def render(hosts: Iterable[Host], slots: int | None = None) -> str:
    """The text of a hostfile.

    Args:
        hosts: in rank order.
        slots: processes a host; None: each host's own `slots`.
    """
    return "".join(f"{host.name} slots={host.slots if slots is None else slots}\n" for host in hosts)


def write(file: str, text: str) -> None:
    """Put `text` into `file`, whole or not at all. Raises UsageError where that cannot be."""
    target = Path(os.path.realpath(file))
    try:
        if target.exists() and not target.is_file():  # a pipe, /dev/null: nothing to put in its place
            target.write_text(text)
            return
        replace_file(target, text)
    except OSError as error:
        raise UsageError(
            f"{file}: cannot be written: {error.strerror}", fix="-o with a file in a directory of yours"
        ) from None
