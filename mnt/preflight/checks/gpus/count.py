"""The number and the model of the GPUs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.inventory.model import Host
from mnt.preflight.checks.gpus.rows import differing
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.registry import check, host_check


@host_check("gpu-count")
def gpu_count(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """nvidia-smi shows as many GPUs as the inventory's `gpus`, and as the PCI bus.

    Fewer GPUs than in the inventory are a failure. If the inventory requires GPUs, an nvidia-smi that fails
    or hangs is a failure too. More GPUs are a warning, because jobs would not use them. A GPU that is on the
    PCI bus but not in nvidia-smi is a warning. A host with `gpus: 0` and no GPU passes. If the inventory's
    `env` sets CUDA_VISIBLE_DEVICES, it must name as many GPUs as `gpus`.
    """
    gpus = facts.gpus
    if gpus is None:
        return
    count, on_bus = len(gpus.found), len(gpus.on_bus)
    devices = host.env.get("CUDA_VISIBLE_DEVICES")
    shown = count if devices is None else _visible(devices, count)
    bus = f"; {on_bus} on the PCI bus" if on_bus > count else ""
    if count < host.gpus:
        reason = f": {gpus.error}" if gpus.error else "" if gpus.tool else ": there is no nvidia-smi"
        repair = (
            "check nvidia-smi and `sudo dmesg | grep -i nvrm`" if gpus.tool else "install the NVIDIA driver"
        )
        yield Problem(
            message=f"only {count} of {host.gpus} GPUs are available{reason}{bus}",
            found=f"{count}{reason}{bus}",
            expected=f"{host.gpus} (inventory: gpus)",
            fix=f"{repair}; or set `gpus` in the inventory to {count}",
        )
    elif devices is not None and shown != host.gpus:
        yield Problem(
            message=f"CUDA_VISIBLE_DEVICES shows {shown} GPUs to jobs, but they would use {host.slots}",
            found=f"CUDA_VISIBLE_DEVICES={devices} (inventory: env), {count} GPUs",
            expected=f"{host.gpus} (inventory: gpus)",
            fix=f"set `gpus` in the inventory to {shown}, or name {host.gpus} GPUs in CUDA_VISIBLE_DEVICES",
            severity=Severity.FAIL if shown < host.gpus else Severity.WARN,
        )
    elif shown > host.gpus:
        yield Problem(
            message=f"{count} GPUs are available, but jobs would use {host.slots}",
            found=str(count),
            expected=f"{host.gpus} (inventory: gpus)",
            fix=f"set `gpus` in the inventory to {count} to use all of them",
            severity=Severity.WARN,
        )
    elif count < on_bus and host.gpus:
        yield Problem(
            message=f"nvidia-smi shows only {count} of the {on_bus} GPUs on the PCI bus",
            found=f"{count}{bus}",
            expected=f"all {on_bus} in nvidia-smi",
            fix="find the driver's messages about the others: sudo dmesg | grep -i nvrm",
            severity=Severity.WARN,
        )


def _visible(devices: str, count: int) -> int:
    """How many of `count` GPUs CUDA_VISIBLE_DEVICES shows.

    The first index that does not exist hides itself and all entries after it (CUDA C++ Programming Guide 13,
    CUDA Environment Variables). Names (GPU-.., MIG-..) are assumed to exist.
    """
    words = [word.strip() for word in devices.split(",")] if devices.strip() else []
    exist = (not re.fullmatch(r"-?\d+", word) or 0 <= int(word) < count for word in words)
    return sum(1 for _ in itertools.takewhile(bool, exist))


@check("gpu-model", severity=Severity.WARN)
def gpu_model(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host has the same GPU model, with the same amount of memory."""
    yield from differing(
        fleet,
        "the GPU model",
        lambda row: f"{row['name']}, {row['memory.total']}" if {"name", "memory.total"} <= set(row) else None,
        "train on hosts with the same GPUs: -n, -x",
    )
