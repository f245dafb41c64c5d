"""What nvidia-smi's texts and the kernel's Xids mean. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mnt.facts.system import Gpus, LogLine

Row = Mapping[str, str]

# Reasons for lower clocks that mean trouble: NVML's nvmlClocksEventReasons (until R535:
# nvmlClocksThrottleReasons). The others are an idle GPU, a power cap that was reached under load, and
# settings that somebody made.
SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake slowdown",
}

# The Xids that point at the GPU, its links or its firmware rather than at a program: NVIDIA's Xid catalogue,
# R580.
XIDS = {
    48: "an uncorrectable memory error",
    62: "the GPU's microcontroller has halted",
    63: "a row of memory is to be remapped",
    64: "remapping a row of memory has failed",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many correctable memory errors",
    94: "an uncorrectable memory error, contained to one program",
    95: "an uncorrectable memory error, not contained",
    119: "the GPU's firmware did not answer in time",
    120: "the GPU's firmware has failed",
    140: "an uncorrectable error in unprotected memory",
    143: "the GPU's firmware could not start",
    145: "an NVLink error",
    149: "an NVLink error",
}
# After these it is of no use before it is reset, or its host is started anew.
FATAL_XIDS = frozenset({62, 64, 79, 95, 119, 120, 140, 143})


class Xid(NamedTuple):
    code: int
    device: str  # PCI address as the kernel prints it, 0000:41:00
    age: float  # seconds
    text: str


def xids(lines: tuple[LogLine, ...]) -> Iterator[Xid]:
    """From lines as `NVRM: Xid (PCI:0000:41:00): 79, pid=.., ..`; old drivers leave out `PCI:`."""
    for line in lines:
        found = re.search(r"NVRM: Xid \((?:PCI:)?([^)]+)\): (\d+),?\s*(.*)", line.text)
        if found:
            yield Xid(int(found[2]), found[1], line.age, found[3])


def number(row: Row, column: str) -> float | None:
    """The number of a text: `143771 MiB`, `16`, `0x08`. None: `[N/A]`, or no such column."""
    text = row.get(column, "").partition(" ")[0]
    try:
        return float(int(text, 16)) if text.startswith("0x") else float(text)
    except ValueError:
        return None


def said(row: Row, column: str) -> str | None:
    """The text, None where it is no answer: `[N/A]`, `[Not Supported]`, `N/A`."""
    text = row.get(column, "").strip()
    return None if not text or text == "N/A" or text.startswith("[") else text


def slowdowns(row: Row) -> list[str]:
    """Why the clocks of a GPU are held down, as far as that is trouble."""
    for column in ("clocks_event_reasons.active", "clocks_throttle_reasons.active"):
        mask = number(row, column)
        if mask is not None:
            return [meaning for bit, meaning in SLOWDOWNS.items() if int(mask) & bit]
    return []


def active_links(gpus: Gpus) -> dict[str, int]:
    """By GPU index, how many of its NVLinks are up: `nvidia-smi nvlink -s` has a line for each link."""
    found: dict[str, int] = {}
    index = ""
    for line in gpus.links.splitlines():
        if gpu := re.match(r"GPU (\d+):", line):
            index = gpu[1]
            found[index] = 0
        elif index and re.match(r"\s+Link \d+: [\d.]+ GB/s", line):
            found[index] += 1
    return found


def label(row: Row) -> str:
    """`GPU 3`, for people."""
    return f"GPU {row.get('index', '?')}"
