"""This user's other jobs on this host, and the GPUs and ports that they hold. Runs on a host: Python 3.8."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mnt.remote.common.files import entries, read, unix_lines
from mnt.remote.common.refusal import Refused
from mnt.remote.job.entry import describe
from mnt.remote.job.files import JobPaths, specs_here
from mnt.remote.job.procs import pids_with_environment
from mnt.remote.job.spec import job_variables

_DRIVER = "/proc/driver/nvidia/gpus"  # a directory for each GPU, named by its PCI address


def jobs_here(but: Sequence[str] = ()) -> Iterator[tuple[dict[str, Any], str]]:
    """The spec and the state of each job that is staged here, or has processes here; "lost" is one state.

    Args:
        but: job and host of one that is left out.
    """
    for job, spec in specs_here():
        host = spec.get("host")
        if [job, host] == list(but) or not isinstance(host, str) or not isinstance(spec.get("jobs_dir"), str):
            continue
        try:
            entry = describe(JobPaths(spec["jobs_dir"], job, host))
        except Refused:
            continue
        state = entry["state"] if entry else "lost"
        held = state in ("pending", "starting", "running")
        if held or any(True for _ in pids_with_environment(job_variables(job, host))):
            yield spec, state


def master_port(spec: Mapping[str, Any]) -> int | None:
    """The port that a job's part on this host binds; None: it is not node 0."""
    port = spec.get("master", {}).get("port") if spec.get("node_rank") == 0 else None
    return port if type(port) is int else None


def check_devices(spec: Mapping[str, Any], others: Sequence[tuple[Mapping[str, Any], str]]) -> None:
    """Raises Refused, naming the job, if a GPU of the spec is promised to another job here."""
    if spec.get("share_gpus") or not spec.get("devices"):
        return
    uuids = uuids_here()
    held = [(other, state, named(other.get("devices") or (), uuids)) for other, state in others]
    for other, state, theirs in held:
        shared = [word for word in spec["devices"] if named([word], uuids) & theirs]
        if shared:
            taken = set().union(*(each for _, _, each in held))
            raise clash(spec, other, state, shared, taken, uuids)


def clash(
    spec: Mapping[str, Any],
    other: Mapping[str, Any],
    state: str,
    shared: Sequence[str],
    taken: Any,
    uuids: Sequence[str],
) -> Refused:
    """Why a job is refused whose GPUs another one has: pure.

    Args:
        shared: those that both want, in the spec's words.
        taken: those of all jobs here, as `named` has them.
        uuids: see `uuids_here`.
    """
    several = len(shared) > 1
    free = [
        str(number) for number in range(spec.get("all_gpus") or 0) if not named([str(number)], uuids) & taken
    ]
    way = f"use others: -n {spec['host']}:{','.join(free)}; or " if free else ""
    return Refused(
        f"GPU{'s' if several else ''} {', '.join(shared)} {'are' if several else 'is'} promised to job"
        f" {other['job']} ({state})",
        f"{way}mnt stop {other['job']}, or wait for its end; --share-gpus lets both use them",
    )


def named(devices: Sequence[str], uuids: Sequence[str]) -> set[str]:
    """Entries of CUDA_VISIBLE_DEVICES in one form: UUIDs, as far as they are known; pure.

    Args:
        uuids: of the GPUs, by their numbers.
    """
    found = set()
    for word in devices:
        if word.isdigit() and int(word) < len(uuids):
            word = uuids[int(word)]
        elif word.startswith("GPU-"):  # it may be cut
            word = next((uuid for uuid in uuids if uuid.startswith(word)), word)
        found.add(word)
    return found


def uuids_here() -> list[str]:
    """The UUIDs of this host's GPUs in the order of their PCI addresses, which is nvidia-smi's; or none."""
    found = []
    for address in sorted(entries(_DRIVER)):
        lines = unix_lines(read(os.path.join(_DRIVER, address, "information"), 8192))
        fields = dict(line.partition(":")[::2] for line in lines)
        found.append(fields.get("GPU UUID", "").strip())
    return found if all(found) else []
