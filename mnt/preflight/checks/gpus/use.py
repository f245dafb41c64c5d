"""The state in which jobs find the GPUs: persistence, MIG, other processes."""

from __future__ import annotations

from collections.abc import Iterator

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.inventory.model import Host
from mnt.preflight.checks.gpus.rows import all_gpus, label_of, rows
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.nvidia import label, number, value
from mnt.preflight.registry import check, host_check

_MUCH = 1024.0  # MiB; older drivers count some of their own memory as used


@host_check("gpu-persistence", severity=Severity.WARN)
def gpu_persistence(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """Persistence mode is on. Without it, the GPUs initialize at each program start, which takes seconds."""
    if any(row.get("persistence_mode") == "Disabled" for row in rows(facts)):
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
    modes = {(name, row.get("index")): value(row, "mig.mode.current") for name, row in all_gpus(fleet)}
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
            fix="when the GPUs are idle: sudo nvidia-smi -mig 0",
            severity=Severity.WARN if sum(map(len, on.values())) == len(known) else Severity.FAIL,
        )


@host_check("gpu-busy", severity=Severity.WARN)
def gpu_busy(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """No process uses the GPUs.

    Processes are named with their PID on the host. Processes in containers may be invisible; then the check
    only sees that memory is in use.
    """
    if facts.gpus is None:
        return
    named = {row["gpu_uuid"] for row in facts.gpus.processes}
    for row in facts.gpus.processes:
        process = f"{row.get('process_name', '?')} (pid {row.get('pid', '?')})"
        yield Problem(
            message=f"{label_of(facts, row)} is in use by {process}",
            found=f"{process} holds {row.get('used_gpu_memory', 'memory')}",
            expected="no process on it",
            fix=f"find its owner: mnt status; ps -o user,lstart,args -p {row.get('pid', 'PID')}",
        )
    for row in facts.gpus.found:
        used = number(row, "memory.used")
        if used is not None and used > _MUCH and row.get("uuid") not in named:
            yield Problem(
                message=f"{label(row)} has memory in use, but no process is visible that uses it",
                found=row["memory.used"],
                expected=f"less than {_MUCH:.0f} MiB",
                fix=f"find the process: sudo fuser -v /dev/nvidia{row['index']}",
            )
