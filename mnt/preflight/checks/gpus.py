"""Are the GPUs available, healthy, alike and free?

The facts come from nvidia-smi, the PCI bus and the kernel log. What a GPU or a driver does not report is not
judged.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable, Iterator, Sequence

from mnt.errors import counted
from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.facts.system import GpuRow, Gpus, failure_of
from mnt.inventory.model import Host
from mnt.preflight import nvidia
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.nvidia import label, number, value
from mnt.preflight.parity import Subject, by_majority
from mnt.preflight.registry import check, host_check

_DAY = 24 * 3600.0  # seconds
_MUCH = 1024.0  # MiB; older drivers count some of their own memory as used


def _rows(facts: HostFacts) -> Sequence[GpuRow]:
    """The GPUs of a host that answer."""
    return facts.gpus.usable if facts.gpus else ()


def _all_gpus(fleet: FleetFacts) -> Iterator[tuple[str, GpuRow]]:
    """(host, row) of all GPUs that answer."""
    return ((host.name, row) for host, facts in fleet.answers() for row in _rows(facts))


def _labels(facts: HostFacts) -> dict[str | None, str]:
    """`GPU 3`, by the UUIDs of the GPUs; of two with one UUID, the first."""
    return {gpu.uuid: label(gpu) for gpu in reversed(_rows(facts))}


def _differing(
    fleet: FleetFacts, name: str, read: Callable[[GpuRow], str | None], fix: str
) -> Iterator[Problem]:
    """Warn about hosts whose GPUs differ from the majority; GPUs that do not report it are left out."""
    values = fleet.reported(
        lambda facts: " and ".join(sorted({found for row in _rows(facts) if (found := read(row))})) or None
    )
    subject = Subject(name, fix=lambda host, _: fix, tie_fix=fix)
    yield from by_majority(subject, values, Severity.WARN)


@host_check("gpu-count")
def gpu_count(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """nvidia-smi shows as many GPUs as the inventory's `gpus`, and as the PCI bus.

    Fewer GPUs than in the inventory are a failure. If the inventory requires GPUs, an nvidia-smi that fails
    or hangs is a failure too. More GPUs are a warning, because jobs would not use them. A GPU that is on the
    PCI bus but not in nvidia-smi is a warning. What nvidia-smi lists counts, even if it warns and exits with
    an error; a GPU that it lists as lost does not count. A host with `gpus: 0` and no GPU passes. If the
    inventory's `env` sets CUDA_VISIBLE_DEVICES, it must name as many GPUs as `gpus`.
    """
    gpus = facts.gpus
    if gpus is None:
        return
    count, on_bus = len(gpus.usable), len(gpus.on_bus)
    devices = host.env.get("CUDA_VISIBLE_DEVICES")
    shown = count if devices is None else nvidia.visible(devices, count)
    bus = f"; {on_bus} on the PCI bus" if on_bus > count else ""
    severity, expected = Severity.WARN, f"{host.gpus} (inventory: gpus)"
    if count < host.gpus:
        reason, repair = _why_so_few(gpus)
        message = f"only {count} of {_available(host.gpus)}{reason}{bus}"
        found, severity = f"{count}{reason}{bus}", Severity.FAIL
        fix = f"{repair}; or, if there are no more, set `gpus` in the inventory to {count}"
    elif devices is not None and shown != host.gpus:
        message = f"CUDA_VISIBLE_DEVICES shows {shown} GPUs to jobs, but they would use {host.slots}"
        found = f"CUDA_VISIBLE_DEVICES={devices} (inventory: env), {counted(count, 'GPU')}"
        named = counted(host.gpus, "GPU")
        fix = f"set `gpus` in the inventory to {shown}, or name {named} in CUDA_VISIBLE_DEVICES"
        severity = Severity.FAIL if shown < host.gpus else Severity.WARN
    elif shown > host.gpus:
        message, found = f"{_available(count)}, but the inventory has {host.gpus}", str(count)
        fix = f"set `gpus` in the inventory to {count} to use all of them"
    elif count < on_bus and host.gpus:
        message = f"nvidia-smi shows only {count} of the {counted(on_bus, 'GPU')} on the PCI bus"
        found, expected = f"{count}{bus}", f"all {on_bus} in nvidia-smi"
        fix = "find the driver's messages about the others: sudo dmesg | grep -i nvrm"
    else:
        return
    yield Problem(message, found, expected, fix, severity)


def _available(count: int) -> str:
    return f"{counted(count, 'GPU')} {'is' if count == 1 else 'are'} available"


def _why_so_few(gpus: Gpus) -> tuple[str, str]:
    """Why nvidia-smi shows fewer GPUs than wanted, `: ..` or nothing, and the repair."""
    if gpus.tool is None:
        return ": there is no nvidia-smi", "install the NVIDIA driver"
    lost = [f"{label(row)}: {failure}" for row in gpus.found if (failure := failure_of(row))]
    said = "; ".join([*lost, *filter(None, (gpus.error, gpus.warning))])
    return f": {said}" if said else "", "check nvidia-smi and `sudo dmesg | grep -i nvrm`"


@host_check("gpu-warning", severity=Severity.WARN)
def gpu_warning(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """nvidia-smi lists the GPUs without a warning, and exits with 0.

    A corrupted infoROM is a typical warning; the GPU works, but may have lost its settings and its record of
    errors. If GPUs are missing too, `gpu-count` has nvidia-smi's words.
    """
    gpus = facts.gpus
    if gpus is not None and gpus.warning and len(gpus.usable) >= host.gpus:
        yield Problem(
            message=f"nvidia-smi warns: {gpus.warning}",
            found=gpus.warning,
            expected="no warning, and exit status 0",
            fix="check each GPU, and report it to the vendor: nvidia-smi -q; sudo nvidia-bug-report.sh",
        )


@check("gpu-model", severity=Severity.WARN)
def gpu_model(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host has the same GPU model, with the same amount of memory."""
    yield from _differing(
        fleet,
        "the GPU model",
        lambda row: f"{row.name}, {row.memory_total}" if row.name and row.memory_total else None,
        "train on hosts with the same GPUs: -n, -x",
    )


@check("gpu-ecc")
def gpu_ecc(fleet: FleetFacts) -> Iterator[Problem]:
    """No GPU has had an uncorrectable memory error since its driver was loaded.

    Older errors, from the GPU's whole life, are information. ECC that is off on some hosts only is a warning:
    these hosts have a different memory size and bandwidth, and nothing detects their memory errors.
    """
    for name, row in _all_gpus(fleet):
        recent = number(row.ecc_recent)
        ever = number(row.ecc_ever)
        if recent:
            yield Problem(
                hosts=(name,),
                message=f"{label(row)} has had uncorrectable memory errors",
                found=f"{recent:.0f} since the driver was loaded",
                expected="0",
                fix=f"sudo nvidia-smi --gpu-reset -i {row.index}; if new errors follow, replace the GPU",
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
    yield from _differing(
        fleet, "ECC", lambda row: value(row.ecc_mode), "sudo nvidia-smi -e 1 (or 0); then reboot"
    )


@host_check("gpu-remap")
def gpu_remap(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """No GPU has a broken memory row that it could not remap, or that it will remap at its next reset.

    After a failed remapping the GPU must be replaced. A pending remapping is a warning.
    """
    labels = _labels(facts)
    for row in facts.gpus.rows if facts.gpus else ():
        which = labels.get(row.gpu_uuid, f"GPU {row.gpu_uuid}")
        if value(row.failure) == "Yes":
            yield Problem(
                message=f"{which} could not remap a broken memory row",
                found="remapping failed",
                expected="no failure",
                fix="replace the GPU; until then exclude the host: -x",
            )
        elif value(row.pending) == "Yes":
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
    needs root or the group adm; where jobs use no GPU (`gpus: 0`), that is no finding.
    """
    log = facts.gpus.kernel_log if facts.gpus else None
    if log is None:
        return
    if log.error is not None and host.gpus:
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
    latest = {(xid.device, xid.code): xid for xid in nvidia.xids(log.lines) if xid.code in nvidia.XIDS}
    for xid in latest.values():
        age = f"{xid.age / 3600:.0f} h" if xid.age >= 3600 else f"{xid.age / 60:.0f} min"
        fatal = xid.code in nvidia.FATAL_XIDS and xid.age < _DAY
        yield Problem(
            message=f"Xid {xid.code} of the GPU at {xid.device}: {nvidia.XIDS[xid.code]}",
            found=f"{age} ago: {xid.text}",
            expected="no such Xid since boot",
            fix="sudo nvidia-smi --gpu-reset, or reboot the host; if the Xid returns, replace the GPU",
            severity=Severity.FAIL if fatal else Severity.WARN,
        )


@host_check("gpu-recovery")
def gpu_recovery(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """No GPU requests a reset or a reboot. Drivers 570 and newer report this recovery action."""
    for row in _rows(facts):
        action = value(row.recovery_action)
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
    for row in _rows(facts):
        reasons = nvidia.slowdowns(row)
        if reasons:
            yield Problem(
                message=f"{label(row)} is slowed down: {', '.join(reasons)}",
                found=", ".join(reasons),
                expected="no slowdown",
                fix="check temperature and power: nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE",
            )


@host_check("gpu-pcie", severity=Severity.WARN)
def gpu_pcie(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """Every GPU uses all PCIe lanes that it and its slot support.

    The PCIe generation is not judged, because it drops while a GPU is idle.
    """
    for row in _rows(facts):
        now, most = number(row.link_width), number(row.link_width_max)
        if now is not None and most is not None and now < most:
            yield Problem(
                message=f"{label(row)} uses {now:.0f} of {most:.0f} PCIe lanes",
                found=f"x{now:.0f}",
                expected=f"x{most:.0f}",
                fix="reseat the card or its riser; to compare: sudo lspci -vv -s "
                + shlex.quote(row.bus_id or "BUS_ID"),
            )


@host_check("gpu-fabric")
def gpu_fabric(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """On hosts with NVSwitches, the fabric manager has initialized the NVLink fabric.

    Until then CUDA programs fail with error 802, system not yet initialized. The check uses the fabric state
    that drivers 535 and newer report for Hopper and newer GPUs. Without this state, it looks for the process
    nv-fabricmanager if NVSwitches are on the PCI bus.
    """
    gpus = facts.gpus
    if gpus is None or not gpus.found:
        return
    states = dict.fromkeys(filter(None, map(nvidia.fabric, gpus.found)))
    wrong = [state for state in states if state != "Completed, Success"]
    if not states and gpus.fabric_manager is False:
        wrong = ["the process nv-fabricmanager does not run"]
    if wrong:
        yield Problem(
            message=f"the NVLink fabric is not initialized: {'; '.join(wrong)}",
            found="; ".join(wrong),
            expected="Completed, Success",
            fix="sudo systemctl enable --now nvidia-fabricmanager (same version as the driver); "
            "then check its log: journalctl -u nvidia-fabricmanager",
        )


@check("gpu-nvlink", severity=Severity.WARN)
def gpu_nvlink(fleet: FleetFacts) -> Iterator[Problem]:
    """Every GPU has as many active NVLinks as the other GPUs of its model on the selected hosts."""
    counts: dict[tuple[str, str, str], int] = {}  # host, index, model -> active links
    for host, facts in fleet.answers():
        links = nvidia.active_links(facts.gpus) if facts.gpus else {}
        for row in _rows(facts):
            if row.index in links:
                counts[host.name, row.index, row.name or ""] = links[row.index]
    most: dict[str, int] = {}
    for (_, _, model), count in counts.items():
        most[model] = max(most.get(model, 0), count)
    for (name, index, model), count in counts.items():
        if count < most[model]:
            yield Problem(
                hosts=(name,),
                message=f"GPU {index} has {count} active NVLinks; others of its model have {most[model]}",
                found=f"{count} of {most[model]}",
                expected=str(most[model]),
                fix=f"find the inactive links: nvidia-smi nvlink -s -i {index}; then reset the GPU or reboot",
            )


@host_check("gpu-persistence", severity=Severity.WARN, playbook="tuning")
def gpu_persistence(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """Persistence mode is on. Without it, the GPUs initialize at each program start, which takes seconds."""
    if any(row.persistence_mode == "Disabled" for row in _rows(facts)):
        yield Problem(
            message="persistence mode is off",
            found="Disabled",
            expected="Enabled",
            fix="sudo systemctl enable --now nvidia-persistenced; or sudo nvidia-smi -pm 1",
        )


@check("gpu-mig")
def gpu_mig(fleet: FleetFacts) -> Iterator[Problem]:
    """MIG is off, or on for all GPUs of all hosts.

    A process sees at most one MIG instance, and NCCL does not use NVLink between instances. MIG on all GPUs
    is a warning. MIG on some GPUs only is a failure.
    """
    modes = {(name, row.index): value(row.mig_mode) for name, row in _all_gpus(fleet)}
    known = {gpu: mode for gpu, mode in modes.items() if mode is not None}
    on: dict[str, list[str]] = {}
    for (name, index), mode in known.items():
        if mode == "Enabled":
            on.setdefault(name, []).append(index)
    for name, indices in on.items():
        yield Problem(
            hosts=(name,),
            message=f"MIG is on for GPU {', '.join(indices)}",
            found="Enabled",
            expected="Disabled on every GPU",
            fix="when the GPUs are idle: sudo nvidia-smi -mig 0",
            severity=Severity.WARN if sum(map(len, on.values())) == len(known) else Severity.FAIL,
        )


@host_check("gpu-busy", severity=Severity.WARN)
def gpu_busy(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """No process uses the GPUs that jobs would use.

    GPUs that CUDA_VISIBLE_DEVICES in the inventory's `env` hides are left out. Processes are named with their
    PID on the host. Processes in containers may be invisible; then the check only sees that memory is in use.
    """
    if facts.gpus is None:
        return
    shown = nvidia.visible_rows(host.env.get("CUDA_VISIBLE_DEVICES"), facts.gpus.usable)
    hidden = {gpu.uuid for gpu in facts.gpus.usable if gpu not in shown}
    named = {row.gpu_uuid for row in facts.gpus.processes}
    labels = _labels(facts)
    for row in facts.gpus.processes:
        if row.gpu_uuid in hidden:
            continue
        process = f"{row.name or '?'} (pid {row.pid or '?'})"
        yield Problem(
            message=f"{labels.get(row.gpu_uuid, f'GPU {row.gpu_uuid}')} is in use by {process}",
            found=f"{process} holds {row.memory or 'memory'}",
            expected="no process on it",
            fix=f"find its owner: mnt status; ps -o user,lstart,args -p {shlex.quote(row.pid or 'PID')}",
        )
    for gpu in shown:
        used = number(gpu.memory_used)
        if used is not None and used > _MUCH and gpu.uuid not in named:
            yield Problem(
                message=f"{label(gpu)} has memory in use, but no process is visible that uses it",
                found=f"{gpu.memory_used}",
                expected=f"less than {_MUCH:.0f} MiB",
                fix=f"find the process: sudo fuser -v /dev/nvidia{gpu.index}",
            )
