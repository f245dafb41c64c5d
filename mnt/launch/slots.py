"""How many processes a node of a job starts, and which of its GPUs they get. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mnt.errors import NeverStarted
from mnt.inventory.model import Host

NUMA = ("node", "socket", "exclusive", "core-complex")  # as torchrun's --numa-binding (torch 2.13)
GPU = "gpu"  # as `nproc`, for a count on each host
VISIBLE = "CUDA_VISIBLE_DEVICES"


def processes(
    host: Host, nproc: int | str | None, env: Mapping[str, str], *, counted: int | None
) -> tuple[int, int]:
    """The number of processes of a node, and of the GPUs that they are promised, at most one each.

    Args:
        nproc: as asked for; GPU: one for each of the host's; None: the host's slots.
        env: of the command line.
        counted: the GPUs that were found there; None: unknown.

    Raises NeverStarted: the GPUs are to be counted, and there is none.
    """
    if nproc != GPU:
        number = host.slots if nproc is None else int(nproc)
        return number, min(host.gpus if host.chosen is None or not host.gpus else len(host.chosen), number)
    named = {**host.env, **env}.get(VISIBLE)
    count: int | None
    if host.chosen is not None and host.gpus:
        count = len(host.chosen)
    else:
        count = counted if named is None or counted is None else min(counted, len(_entries(named) or ()))
    if not count:
        raise NeverStarted(
            f"{host.name}: --nproc {GPU}: there is no GPU that nvidia-smi lists"
            + ("" if named is None else f" and {VISIBLE}={named} shows"),
            fix="mnt preflight --only gpu-count; or --nproc N",
            host=host.name,
        )
    return count, count


def require_numa(host: Host, nproc: int, promised: int, *, binds: bool | None) -> None:
    """Raises NeverStarted if torchrun cannot bind the processes: it finds the CPUs by each one's GPU.

    Args:
        binds: whether the torchrun of the host has the option; None: unknown.
    """
    if promised < nproc:
        raise NeverStarted(
            f"{host.name}: --numa binds a process to the CPUs near its GPU, but {nproc - promised} of"
            f" {nproc} have none",
            fix="remove --numa, or set `gpus` of the host in the inventory",
            host=host.name,
        )
    if binds is False:
        raise NeverStarted(
            f"{host.name}: its torchrun has no --numa-binding",
            fix="remove --numa, or install a newer torch (2.13 has it)",
            host=host.name,
        )


def chosen_gpus(host: Host, given: Collection[str]) -> dict[str, str]:
    """The variables that show a job only the selected GPUs of a host; none if all are, or it has none.

    Args:
        given: the names of variables that the user sets on the command line.

    The numbers count the entries of CUDA_VISIBLE_DEVICES in the inventory, if it is there; else they are
    those of nvidia-smi, by CUDA_DEVICE_ORDER (CUDA C++ Programming Guide 13, CUDA Environment Variables).

    Raises NeverStarted: the GPUs are named twice, or there is no such entry.
    """
    if host.chosen is None or not host.gpus:
        return {}
    if VISIBLE in given:
        raise NeverStarted(
            f"{host.name}: both the hostlist and {VISIBLE} of the command line select GPUs",
            fix="remove one of them",
            host=host.name,
        )
    listed = _entries(host.env.get(VISIBLE))
    if listed is None:
        return {VISIBLE: ",".join(map(str, host.chosen)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if max(host.chosen) >= len(listed):
        raise NeverStarted(
            f"{host.name}: {VISIBLE} of the inventory has {len(listed)} entries: no GPU {max(host.chosen)}",
            fix=f"name others, or correct {VISIBLE} in the inventory",
            host=host.name,
        )
    return {VISIBLE: ",".join(listed[number] for number in host.chosen)}


def _entries(devices: str | None) -> tuple[str, ...] | None:
    """The entries of CUDA_VISIBLE_DEVICES; None: it is not set."""
    return None if devices is None else tuple(word.strip() for word in devices.split(",") if word.strip())


def devices(visible: str | None, promised: int) -> tuple[str, ...]:
    """The GPUs that are promised: local rank N gets the Nth that the job sees."""
    listed = _entries(visible)
    return tuple(map(str, range(promised))) if listed is None else listed[:promised]
