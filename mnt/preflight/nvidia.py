"""The meaning of nvidia-smi's texts and of the kernel's Xids. Pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mnt.facts.system import Cell, GpuRow, Gpus, LogLine
from mnt.remote.common.files import whole_number

# Reasons for lower clocks that indicate a fault: NVML's nvmlClocksEventReasons (until R535:
# nvmlClocksThrottleReasons). The other reasons are normal: an idle GPU, the power cap under load, and clock
# settings of the user.
SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake slowdown",
}

# The Xids that indicate a fault of the GPU, its links or its firmware, not of a program: NVIDIA's Xid
# catalogue, R580.
XIDS = {
    48: "an uncorrectable memory error",
    62: "the GPU's microcontroller has halted",
    63: "a memory row will be remapped",
    64: "remapping a memory row has failed",
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
# After these Xids the GPU is unusable until it is reset or its host is rebooted.
FATAL_XIDS = frozenset({62, 64, 79, 95, 119, 120, 140, 143})


_LONGEST_LINE = 2000  # characters; a message of the kernel has at most 1,024


class Xid(NamedTuple):
    code: int
    device: str  # PCI address as the kernel prints it, 0000:41:00
    age: float  # seconds
    text: str


def xids(lines: tuple[LogLine, ...]) -> Iterator[Xid]:
    """From lines like `NVRM: Xid (PCI:0000:41:00): 79, pid=.., ..`; old drivers leave out `PCI:`."""
    for line in lines:
        found = re.search(r"NVRM: Xid \((?:PCI:)?([^)]+)\): ([0-9]{1,9}),?\s*(.*)", line.text[:_LONGEST_LINE])
        if found:
            yield Xid(int(found[2]), found[1], line.age, found[3])


def number(cell: Cell) -> float | None:
    """The number in a text like `143771 MiB`, `16`, `0x08`. None: `[N/A]`, or no such column."""
    text = (cell or "").partition(" ")[0]
    try:
        found = float(int(text, 16)) if text.startswith("0x") else float(text)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def value(cell: Cell) -> str | None:
    """The text of a cell; None if the GPU does not report it: `[N/A]`, `[Not Supported]`, `N/A`."""
    text = (cell or "").strip()
    return None if not text or text == "N/A" or text.startswith("[") else text


def slowdowns(gpu: GpuRow) -> list[str]:
    """The reasons for low clocks of a GPU that indicate a fault."""
    for mask in map(number, (gpu.event_reasons, gpu.throttle_reasons)):
        if mask is not None:
            return [meaning for bit, meaning in SLOWDOWNS.items() if int(mask) & bit]
    return []


def active_links(gpus: Gpus) -> dict[str, int]:
    """The number of active NVLinks by GPU index: `nvidia-smi nvlink -s` prints one line per link."""
    found: dict[str, int] = {}
    index = ""
    for line in gpus.links.splitlines():
        if gpu := re.match(r"GPU (\d+):", line):
            index = gpu[1]
            found[index] = 0
        elif index and re.match(r"\s+Link \d+: [\d.]+ GB/s", line):
            found[index] += 1
    return found


def label(gpu: GpuRow) -> str:
    """`GPU 3`, for people."""
    return f"GPU {gpu.index}"


def fabric(gpu: GpuRow) -> str | None:
    """The state of the NVLink fabric: `Completed, Success`; None: the GPU has no fabric."""
    state, status = value(gpu.fabric_state), value(gpu.fabric_status)
    if state is None or state == "Not Supported":
        return None
    return f"{state}, {status or 'Success'}" if state == "Completed" else state


def visible(devices: str, count: int) -> int:
    """How many of `count` GPUs CUDA_VISIBLE_DEVICES shows."""
    return len(_shown(devices, count))


def visible_rows(devices: str | None, rows: Sequence[GpuRow]) -> list[GpuRow]:
    """Those of a host's GPUs that CUDA_VISIBLE_DEVICES shows: all if it is not set, or names MIG devices."""
    words = None if devices is None else _shown(devices, len(rows))
    if words is None or any(word.startswith("MIG-") for word in words):
        return list(rows)
    return [row for row in rows if any(word == row.index or _names(word, row.uuid or "") for word in words)]


def _names(word: str, uuid: str) -> bool:
    """A UUID may be cut, `GPU-8932f937`."""
    return word.startswith("GPU-") and uuid.startswith(word)


def _shown(devices: str, count: int) -> list[str]:
    """The entries of CUDA_VISIBLE_DEVICES that count on a host with so many GPUs.

    The first index that does not exist hides itself and all entries after it (CUDA C++ Programming Guide 13,
    CUDA Environment Variables). Names (GPU-.., MIG-..) are assumed to exist.
    """
    words = [word.strip() for word in devices.split(",")] if devices.strip() else []

    def exists(word: str) -> bool:
        index = whole_number(word)
        return not re.fullmatch("-?[0-9]+", word) if index is None else index < count

    return list(itertools.takewhile(exists, words))
