"""Looking at what runs on a host."""

from __future__ import annotations

from mnt.lab.lab import LabHost


def running(host: LabHost, word: str) -> list[str]:
    """Command lines on the host that hold `word`."""
    lines = host.exec(["ps", "-eo", "args="]).stdout.splitlines()
    return [line for line in lines if word in line and "ps -eo" not in line]
