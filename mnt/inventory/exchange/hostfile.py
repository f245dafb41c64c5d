"""The hostfile that DeepSpeed reads: `node1 slots=8`, one line per host, the master first.

DeepSpeed (0.19, `deepspeed/launcher/runner.py`) reads lines `^(\\S+)\\s+slots=(\\d+)`, without ranges. It
passes the first word to pdsh and ssh, and compares it with `--include` and `--exclude`. So it is the host's
name, which must lead to the host on the machine where DeepSpeed runs.
"""

from __future__ import annotations

from collections.abc import Iterable

from mnt.inventory.model import Host
from mnt.ui.files import write_file


def render(hosts: Iterable[Host], slots: int | None = None) -> str:
    """The text of a hostfile.

    Args:
        hosts: in rank order.
        slots: processes per host; None: each host's own.
    """
    return "".join(f"{host.name} slots={_slots(host) if slots is None else slots}\n" for host in hosts)


def _slots(host: Host) -> int:
    """All slots of a host of which some are selected: DeepSpeed looks up the numbers of `--include` there."""
    return host.slots if host.chosen is None else len(host.all_slots)


def write(file: str, text: str) -> None:
    """Write `text` to `file`, completely or not at all. Raises as `write_file`."""
    write_file(file, text, fix="use -o with a file in a directory of yours")
