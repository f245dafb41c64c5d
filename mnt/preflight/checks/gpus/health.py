"""Faults of the GPUs themselves: memory errors, Xids, slowdowns."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.inventory.model import Host
from mnt.preflight.checks.gpus.rows import all_gpus, differing, label_of, rows
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.nvidia import FATAL_XIDS, XIDS, label, number, slowdowns, value, xids
from mnt.preflight.registry import check, host_check

_DAY = 24 * 3600.0  # seconds


@check("gpu-ecc")
def gpu_ecc(fleet: FleetFacts) -> Iterator[Problem]:
    """No GPU has had an uncorrectable memory error since its driver was loaded.

    Older errors, from the GPU's whole life, are information. ECC that is off on some hosts only is a warning:
    these hosts have a different memory size and bandwidth, and nothing detects their memory errors.
    """
    for name, row in all_gpus(fleet):
        recent = number(row, "ecc.errors.uncorrected.volatile.total")
        ever = number(row, "ecc.errors.uncorrected.aggregate.total")
        if recent:
            yield Problem(
                hosts=(name,),
                message=f"{label(row)} has had uncorrectable memory errors",
                found=f"{recent:.0f} since the driver was loaded",
                expected="0",
                fix=f"sudo nvidia-smi --gpu-reset -i {row['index']}; if new errors follow, replace the GPU",
            )
        elif ever:
            yield Problem(
                hosts=(name,),
                message=f"{label(row)} had uncorrectable memory errors in the past",
                found=f"{ever:.0f} in its life",
                expected="0",
                fix="replace the GPU if the number increases",
                severity=Severity.INFO,
            )
    yield from differing(
        fleet, "ECC", lambda row: value(row, "ecc.mode.current"), "sudo nvidia-smi -e 1 (or 0); then reboot"
    )


@host_check("gpu-remap")
def gpu_remap(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """No GPU has a broken memory row that it could not remap, or that it will remap at its next reset.

    After a failed remapping the GPU must be replaced. A pending remapping is a warning.
    """
    for row in facts.gpus.rows if facts.gpus else ():
        which = label_of(facts, row)
        if value(row, "remapped_rows.failure") == "Yes":
            yield Problem(
                message=f"{which} could not remap a broken memory row",
                found="remapping failed",
                expected="no failure",
                fix="replace the GPU; until then exclude the host: -x",
            )
        elif value(row, "remapped_rows.pending") == "Yes":
            yield Problem(
                message=f"{which} has a broken memory row, and will remap it at its next reset",
                found="a remapping is pending",
                expected="none",
                fix="when the GPU is idle: sudo nvidia-smi --gpu-reset; or reboot the host",
                severity=Severity.WARN,
            )


@host_check("gpu-xid")
def gpu_xid(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """The kernel log since boot has no Xid that indicates a fault of a GPU, its links or its firmware.

    An Xid after which the GPU must be reset is a failure if it is less than a day old. All other Xids are
    warnings, because the GPU may have been reset since. Xids that programs cause (13, 31, 43, 45) do not
    count. If the user may not read the kernel log (kernel.dmesg_restrict), the result is unknown: reading it
    needs root or the group adm.
    """
    log = facts.gpus.kernel_log if facts.gpus else None
    if log is None:
        return
    if log.error is not None:
        denied = log.error in (os.strerror(errno.EPERM), os.strerror(errno.EACCES))
        yield Problem(
            message="unknown: reading the Xids in the kernel log needs root"
            if denied
            else "unknown: there is no kernel log with the GPUs' Xids",
            found=log.error,
            expected="a kernel log that the user may read",
            fix="sudo usermod -aG adm USER; or sudo sysctl kernel.dmesg_restrict=0"
            if denied
            else "if the host is a container, check the log of its machine: sudo dmesg | grep -i xid",
            severity=Severity.INFO,
        )
    latest = {(xid.device, xid.code): xid for xid in xids(log.lines) if xid.code in XIDS}
    for xid in latest.values():
        age = f"{xid.age / 3600:.0f} h" if xid.age >= 3600 else f"{xid.age / 60:.0f} min"
        fatal = xid.code in FATAL_XIDS and xid.age < _DAY
        yield Problem(
            message=f"Xid {xid.code} of the GPU at {xid.device}: {XIDS[xid.code]}",
            found=f"{age} ago: {xid.text}",
            expected="no such Xid since boot",
            fix="sudo nvidia-smi --gpu-reset, or reboot the host; if the Xid returns, replace the GPU",
            severity=Severity.FAIL if fatal else Severity.WARN,
        )


@host_check("gpu-recovery")
def gpu_recovery(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """No GPU requests a reset or a reboot. Drivers 570 and newer report this recovery action."""
    for row in rows(facts):
        action = value(row, "gpu_recovery_action")
        if action is not None and action != "None":
            yield Problem(
                message=f"{label(row)} requests a recovery action: {action}",
                found=action,
                expected="None",
                fix="for Reset: sudo nvidia-smi --gpu-reset; for Reboot, reboot the host",
            )


@host_check("gpu-throttle", severity=Severity.WARN)
def gpu_throttle(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """No GPU is slowed down by heat or by its power supply.

    Low clocks of an idle GPU, and the power cap of a busy one, are normal.
    """
    for row in rows(facts):
        reasons = slowdowns(row)
        if reasons:
            yield Problem(
                message=f"{label(row)} is slowed down: {', '.join(reasons)}",
                found=", ".join(reasons),
                expected="no slowdown",
                fix="check temperature and power: nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE",
            )
