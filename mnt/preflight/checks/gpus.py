"""Are the GPUs there, sound, alike and free?

Asked of nvidia-smi, the PCI bus and the kernel log. What a GPU or a driver cannot tell is no verdict.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
from collections.abc import Callable, Iterator

from mnt.facts.fleet import FleetFacts
from mnt.facts.system import Gpus
from mnt.inventory.model import Host
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.nvidia import (
    FATAL_XIDS,
    XIDS,
    Row,
    Xid,
    active_links,
    label,
    number,
    said,
    slowdowns,
    xids,
)
from mnt.preflight.parity import Subject, by_majority
from mnt.preflight.registry import check

_DAY = 24 * 3600.0  # seconds
_MUCH = 1024.0  # MiB; older drivers count some of their own as used


@check("gpu-count")
def gpu_count(fleet: FleetFacts) -> Iterator[Problem]:
    """nvidia-smi shows as many GPUs as the inventory's `gpus` says, and as the PCI bus has.

    Fewer than the inventory's fail, and so does an nvidia-smi that fails or hangs where GPUs are wanted. More
    are a warning: those would idle. So is one that is on the bus and not in nvidia-smi. None wanted and none
    there is well. Where the inventory's `env` sets CUDA_VISIBLE_DEVICES, it has to name as many as `gpus`.
    """
    for host, facts in fleet.answers():
        if facts.gpus is not None:
            yield from _judge_count(host, facts.gpus)


def _visible(devices: str, count: int) -> int:
    """How many GPUs of `count` CUDA_VISIBLE_DEVICES shows.

    The first index that does not exist hides itself and all behind it (CUDA C++ Programming Guide 13, CUDA
    Environment Variables). Names (GPU-.., MIG-..) are taken to exist.
    """
    words = [word.strip() for word in devices.split(",")] if devices.strip() else []
    exist = (not re.fullmatch(r"-?\d+", word) or 0 <= int(word) < count for word in words)
    return sum(1 for _ in itertools.takewhile(bool, exist))


def _judge_count(host: Host, gpus: Gpus) -> Iterator[Problem]:
    count, on_bus = len(gpus.found), len(gpus.on_bus)
    devices = host.env.get("CUDA_VISIBLE_DEVICES")
    shown = count if devices is None else _visible(devices, count)
    seen = f"; {on_bus} on the PCI bus" if on_bus > count else ""
    if count < host.gpus:
        why = f": {gpus.error}" if gpus.error else "" if gpus.tool else ": there is no nvidia-smi"
        look = (
            "look at nvidia-smi and at `sudo dmesg | grep -i nvrm`"
            if gpus.tool
            else "install the NVIDIA driver"
        )
        yield Problem(
            hosts=(host.name,),
            message=f"{count} of {host.gpus} GPUs are there{why}{seen}",
            found=f"{count}{why}{seen}",
            expected=f"{host.gpus} (inventory: gpus)",
            fix=f"{look}; or set `gpus` in the inventory to {count}",
        )
    elif devices is not None and shown != host.gpus:
        yield Problem(
            hosts=(host.name,),
            message=f"CUDA_VISIBLE_DEVICES shows {shown} GPUs to jobs, and they would use {host.slots}",
            found=f"CUDA_VISIBLE_DEVICES={devices} (inventory: env), {count} GPUs",
            expected=f"{host.gpus} (inventory: gpus)",
            fix=f"set `gpus` to {shown} in the inventory, or have CUDA_VISIBLE_DEVICES name {host.gpus}",
            severity=Severity.FAIL if shown < host.gpus else Severity.WARN,
        )
    elif shown > host.gpus:
        yield Problem(
            hosts=(host.name,),
            message=f"{count} GPUs are there, and jobs would use {host.slots}",
            found=str(count),
            expected=f"{host.gpus} (inventory: gpus)",
            fix=f"set `gpus` in the inventory to {count}, if jobs are to use them all",
            severity=Severity.WARN,
        )
    elif count < on_bus and host.gpus:
        yield Problem(
            hosts=(host.name,),
            message=f"nvidia-smi shows {count} of the {on_bus} GPUs on the PCI bus",
            found=f"{count}{seen}",
            expected=f"all {on_bus} in nvidia-smi",
            fix="see what the driver says of the others: sudo dmesg | grep -i nvrm",
            severity=Severity.WARN,
        )


@check("gpu-model", severity=Severity.WARN)
def gpu_model(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host has the same kind of GPU, with the same memory."""
    yield from _alike(
        fleet,
        "the GPU model",
        lambda row: f"{row['name']}, {row['memory.total']}" if {"name", "memory.total"} <= set(row) else None,
        "train on hosts of one kind (-n, -x), or give each what it can hold",
    )


@check("gpu-ecc")
def gpu_ecc(fleet: FleetFacts) -> Iterator[Problem]:
    """No GPU has had an uncorrectable memory error since its driver was loaded.

    Errors of its whole life, long since dealt with, are only worth knowing. ECC that is off on some hosts
    alone is a warning: they have other memory and bandwidth, and their errors nobody sees.
    """
    for name, row in _rows(fleet):
        recent = number(row, "ecc.errors.uncorrected.volatile.total")
        ever = number(row, "ecc.errors.uncorrected.aggregate.total")
        if recent:
            yield Problem(
                hosts=(name,),
                message=f"{label(row)} has had uncorrectable memory errors",
                found=f"{recent:.0f} since the driver was loaded",
                expected="0",
                fix=f"sudo nvidia-smi --gpu-reset -i {row['index']}; if more come, have the GPU replaced",
            )
        elif ever:
            yield Problem(
                hosts=(name,),
                message=f"{label(row)} once had uncorrectable memory errors",
                found=f"{ever:.0f} in its life",
                expected="0",
                fix="nothing now; if they become more, have the GPU replaced",
                severity=Severity.INFO,
            )
    yield from _alike(
        fleet, "ECC", lambda row: said(row, "ecc.mode.current"), "sudo nvidia-smi -e 1 (or 0), then reboot it"
    )


@check("gpu-remap")
def gpu_remap(fleet: FleetFacts) -> Iterator[Problem]:
    """No GPU has failed to remap a broken row of its memory; none waits for a reset to do so.

    A failure is a case for replacement, a pending remapping a warning.
    """
    for host, facts in fleet.answers():
        for row in facts.gpus.rows if facts.gpus else ():
            which = _label_of(facts.gpus, row)
            if said(row, "remapped_rows.failure") == "Yes":
                yield Problem(
                    hosts=(host.name,),
                    message=f"{which} could not remap a broken row of its memory",
                    found="remapping failed",
                    expected="no failure",
                    fix="have the GPU replaced; until then leave the host out: -x",
                )
            elif said(row, "remapped_rows.pending") == "Yes":
                yield Problem(
                    hosts=(host.name,),
                    message=f"{which} has a broken row of memory to remap at its next reset",
                    found="a remapping is pending",
                    expected="none",
                    fix="when nothing runs there: sudo nvidia-smi --gpu-reset, or reboot it",
                    severity=Severity.WARN,
                )


@check("gpu-xid")
def gpu_xid(fleet: FleetFacts) -> Iterator[Problem]:
    """The kernel log has no Xid, since boot, that points at a GPU, its links or its firmware.

    Those after which a GPU must be reset fail when they are less than a day old; all others are warnings, for
    it may have been reset since. Xids that programs cause (13, 31, 43, 45) do not count. Where the user may
    not read the kernel log (kernel.dmesg_restrict) it is unknown: that needs root, or the group adm.
    """
    for host, facts in fleet.answers():
        log = facts.gpus.kernel_log if facts.gpus else None
        if log is not None and log.error is not None:
            denied = log.error in (os.strerror(errno.EPERM), os.strerror(errno.EACCES))
            yield Problem(
                hosts=(host.name,),
                message="unknown: the kernel log, which has the GPUs' Xids, "
                + ("needs root" if denied else "is not there"),
                found=log.error,
                expected="a kernel log that the user may read",
                fix="sudo usermod -aG adm USER, or sudo sysctl kernel.dmesg_restrict=0"
                if denied
                else "in a container, look at the machine's own: sudo dmesg | grep -i xid",
                severity=Severity.INFO,
            )
        latest: dict[tuple[str, int], Xid] = {}
        for xid in xids(log.lines) if log else ():
            if xid.code in XIDS:
                latest[xid.device, xid.code] = xid
        for xid in latest.values():
            fatal = xid.code in FATAL_XIDS and xid.age < _DAY
            yield Problem(
                hosts=(host.name,),
                message=f"Xid {xid.code} of the GPU at {xid.device}: {XIDS[xid.code]}",
                found=f"{_ago(xid.age)}: {xid.text}",
                expected="no such Xid since boot",
                fix="sudo nvidia-smi --gpu-reset, or reboot it; if it comes back, have the GPU replaced",
                severity=Severity.FAIL if fatal else Severity.WARN,
            )


def _ago(age: float) -> str:
    return f"{age / 3600:.0f} h ago" if age >= 3600 else f"{age / 60:.0f} min ago"


@check("gpu-recovery")
def gpu_recovery(fleet: FleetFacts) -> Iterator[Problem]:
    """No GPU asks for a reset or a reboot, by the recovery action that drivers from 570 on name."""
    for name, row in _rows(fleet):
        action = said(row, "gpu_recovery_action")
        if action is not None and action != "None":
            yield Problem(
                hosts=(name,),
                message=f"{label(row)} asks for a recovery action: {action}",
                found=action,
                expected="None",
                fix="do what it asks for: Reset is sudo nvidia-smi --gpu-reset, Reboot is of the whole host",
            )


@check("gpu-throttle", severity=Severity.WARN)
def gpu_throttle(fleet: FleetFacts) -> Iterator[Problem]:
    """No GPU is slowed down by heat or by its power supply.

    An idle GPU's low clocks, and the power cap that a busy one runs into, are normal.
    """
    for name, row in _rows(fleet):
        reasons = slowdowns(row)
        if reasons:
            yield Problem(
                hosts=(name,),
                message=f"{label(row)} is slowed down: {', '.join(reasons)}",
                found=", ".join(reasons),
                expected="no slowdown",
                fix="see its temperature and power: nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE",
            )


@check("gpu-persistence", severity=Severity.WARN)
def gpu_persistence(fleet: FleetFacts) -> Iterator[Problem]:
    """Persistence mode is on: without it each start of a program wakes the GPUs up, for seconds."""
    for name in dict.fromkeys(
        name for name, row in _rows(fleet) if row.get("persistence_mode") == "Disabled"
    ):
        yield Problem(
            hosts=(name,),
            message="persistence mode is off",
            found="Disabled",
            expected="Enabled",
            fix="sudo systemctl enable --now nvidia-persistenced, or sudo nvidia-smi -pm 1",
        )


@check("gpu-pcie", severity=Severity.WARN)
def gpu_pcie(fleet: FleetFacts) -> Iterator[Problem]:
    """Every GPU has all the PCIe lanes that it and its slot can have.

    The generation is not judged: it drops while a GPU is idle.
    """
    for name, row in _rows(fleet):
        now, most = number(row, "pcie.link.width.current"), number(row, "pcie.link.width.max")
        if now is not None and most is not None and now < most:
            yield Problem(
                hosts=(name,),
                message=f"{label(row)} has {now:.0f} of {most:.0f} PCIe lanes",
                found=f"x{now:.0f}",
                expected=f"x{most:.0f}",
                fix="reseat the card or its riser; compare: sudo lspci -vv -s "
                + row.get("pci.bus_id", "BUS_ID"),
            )


@check("gpu-fabric")
def gpu_fabric(fleet: FleetFacts) -> Iterator[Problem]:
    """Where GPUs hang on NVSwitches, the fabric manager has brought the fabric up.

    Until then CUDA programs fail with error 802, system not yet initialized. Judged by the state that drivers
    from 535 on tell of Hopper and newer, else by the process nv-fabricmanager where NVSwitches are on the PCI
    bus.
    """
    for host, facts in fleet.answers():
        gpus = facts.gpus
        if gpus is None or not gpus.found:
            continue
        states = dict.fromkeys(filter(None, map(_fabric, gpus.found)))
        wrong = [state for state in states if state != "Completed, Success"]
        if not states and gpus.fabric_manager is False:
            wrong = ["no process nv-fabricmanager"]
        if wrong:
            yield Problem(
                hosts=(host.name,),
                message=f"the NVLink fabric is not up: {'; '.join(wrong)}",
                found="; ".join(wrong),
                expected="Completed, Success",
                fix="sudo systemctl enable --now nvidia-fabricmanager (of the driver's own version), "
                "and look at its log: journalctl -u nvidia-fabricmanager",
            )


def _fabric(row: Row) -> str | None:
    state, status = said(row, "fabric.state"), said(row, "fabric.status")
    if state is None or state == "Not Supported":
        return None
    return f"{state}, {status or 'Success'}" if state == "Completed" else state


@check("gpu-nvlink", severity=Severity.WARN)
def gpu_nvlink(fleet: FleetFacts) -> Iterator[Problem]:
    """Every GPU has as many NVLinks up as any other of its model on the selected hosts."""
    models: dict[tuple[str, str], str] = {}
    counts: dict[tuple[str, str], int] = {}
    for host, facts in fleet.answers():
        links = active_links(facts.gpus) if facts.gpus else {}
        for row in facts.gpus.found if facts.gpus else ():
            if row.get("index") in links:
                models[host.name, row["index"]] = row.get("name", "")
                counts[host.name, row["index"]] = links[row["index"]]
    most: dict[str, int] = {}
    for gpu, model in models.items():
        most[model] = max(most.get(model, 0), counts[gpu])
    for (name, index), count in counts.items():
        usual = most[models[name, index]]
        if count < usual:
            yield Problem(
                hosts=(name,),
                message=f"GPU {index} has {count} NVLinks up; others of its model have {usual}",
                found=f"{count} of {usual}",
                expected=str(usual),
                fix=f"nvidia-smi nvlink -s -i {index} shows which; a reset or reboot may bring them up again",
            )


@check("gpu-mig")
def gpu_mig(fleet: FleetFacts) -> Iterator[Problem]:
    """MIG is off, or on for all GPUs of all hosts.

    A process sees one MIG instance at most, and NCCL does not use NVLink between instances: on everywhere is
    a warning, on for some fails.
    """
    modes = {(name, row.get("index")): said(row, "mig.mode.current") for name, row in _rows(fleet)}
    known = {gpu: mode for gpu, mode in modes.items() if mode is not None}
    on: dict[str, list[str]] = {}
    for (name, index), mode in known.items():
        if mode == "Enabled":
            on.setdefault(name, []).append(str(index))
    for name, indices in on.items():
        yield Problem(
            hosts=(name,),
            message=f"MIG is on for GPU {', '.join(indices)}",
            found="Enabled",
            expected="Disabled on every GPU",
            fix="when nothing runs there: sudo nvidia-smi -mig 0",
            severity=Severity.WARN if sum(map(len, on.values())) == len(known) else Severity.FAIL,
        )


@check("gpu-busy", severity=Severity.WARN)
def gpu_busy(fleet: FleetFacts) -> Iterator[Problem]:
    """Nobody holds memory of the GPUs yet.

    Processes are named with the PID that they have there; those of containers may not be seen at all, and
    then only the memory tells.
    """
    for host, facts in fleet.answers():
        if facts.gpus is None:
            continue
        named = {row["gpu_uuid"] for row in facts.gpus.processes}
        for row in facts.gpus.processes:
            process = f"{row.get('process_name', '?')} (pid {row.get('pid', '?')})"
            yield Problem(
                hosts=(host.name,),
                message=f"{_label_of(facts.gpus, row)} is in use by {process}",
                found=f"{process} holds {row.get('used_gpu_memory', 'memory')}",
                expected="no process on it",
                fix=f"see whose it is: mnt status; ps -o user,lstart,args -p {row.get('pid', 'PID')}",
            )
        for row in facts.gpus.found:
            used = number(row, "memory.used")
            if used is not None and used > _MUCH and row.get("uuid") not in named:
                yield Problem(
                    hosts=(host.name,),
                    message=f"{label(row)} has memory in use, and no process is seen that holds it",
                    found=row["memory.used"],
                    expected=f"less than {_MUCH:.0f} MiB",
                    fix=f"see who has it open: sudo fuser -v /dev/nvidia{row['index']}",
                )


def _rows(fleet: FleetFacts) -> Iterator[tuple[str, Row]]:
    """(host, GPU) of all GPUs that nvidia-smi shows."""
    for host, facts in fleet.answers():
        for row in facts.gpus.found if facts.gpus else ():
            yield host.name, row


def _label_of(gpus: Gpus | None, row: Row) -> str:
    """The GPU of a row that knows it by its UUID."""
    uuid = row.get("gpu_uuid")
    return next((label(gpu) for gpu in gpus.found if gpu.get("uuid") == uuid), f"GPU {uuid}") if gpus else ""


def _alike(fleet: FleetFacts, name: str, value: Callable[[Row], str | None], fix: str) -> Iterator[Problem]:
    """What differs between hosts, as a warning; hosts whose GPUs do not tell are left out."""
    values: dict[str, list[str]] = {}
    for host, row in _rows(fleet):
        found = value(row)
        if found is not None:
            values.setdefault(host, []).append(found)
    subject = Subject(name, "", fix=lambda host, _: fix, settle=lambda _: fix)
    shown = {host: " and ".join(sorted(set(found))) for host, found in values.items()}
    yield from by_majority(subject, shown, Severity.WARN)
