"""Whether torch sees the GPUs that a node was promised: asked before its ranks start."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Any, NamedTuple

from mnt.remote.common.files import encode, parse_json
from mnt.remote.common.refusal import Refused
from mnt.remote.job.inside import remove_container, without_job
from mnt.remote.job.spec import job_environment

PATIENCE = 45.0  # seconds for an interpreter to import torch; less than a caller waits for `stage_node`

# `torch.accelerator` (torch 2.6 and newer) also knows what is no CUDA or ROCm device.
_LOOK = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
other = getattr(torch, "accelerator", None)
if not count and other is not None and other.is_available():
    count = other.device_count()
built = torch.version.cuda or getattr(torch.version, "hip", None)
print(json.dumps({"gpus": count, "torch": torch.__version__, "cpu_build": not built}))
"""


class Seen(NamedTuple):
    """What torch sees in the environment of a job."""

    gpus: int
    torch: str  # its version
    cpu_build: bool
    says: str = ""  # the last line of its warnings


def check_gpus(spec: Mapping[str, Any], session: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Raises Refused if torch sees fewer GPUs than the spec promises.

    What a torch that is missing, or does not answer in time, would see is not known; torchrun will fail.
    """
    promised = spec.get("gpus") or 0
    if not promised:
        return
    environment = job_environment(spec, session, secrets)
    seen = _look(spec, environment)
    devices = environment.get(b"CUDA_VISIBLE_DEVICES")
    if seen is not None and seen.gpus < promised:
        raise refusal(promised, seen, None if devices is None else devices.decode("utf-8", "replace"))


def refusal(promised: int, seen: Seen, devices: str | None) -> Refused:
    """Why a node is refused whose torch sees too few GPUs: pure.

    Args:
        devices: CUDA_VISIBLE_DEVICES of the job; None: it is not set.
    """
    why, fix = f": {seen.says}" if seen.says else "", "sudo dmesg | grep -i nvrm"
    if seen.cpu_build:
        why, fix = f": torch {seen.torch} is a build for CPUs", "install a build of torch for GPUs"
    elif devices is not None:
        why, fix = f": CUDA_VISIBLE_DEVICES is {devices[:80]!r}", "correct CUDA_VISIBLE_DEVICES"
    message = f"torch sees {seen.gpus} of the {promised} GPUs that this node was promised{why}"
    return Refused(message, f"{fix}; or set `gpus` of this host in the inventory to {seen.gpus}")


def parse(output: str, warnings: str) -> Seen | None:
    """The answer in the last line of what the interpreter printed; None: there is none. Pure."""
    try:
        answer = parse_json(output.strip().rpartition("\n")[2])
        gpus, torch, cpu_build = answer["gpus"], answer["torch"], answer["cpu_build"]
    except (ValueError, KeyError, TypeError):
        return None
    if type(gpus) is not int or not isinstance(torch, str):
        return None
    lines = [line.strip() for line in warnings.splitlines() if "Warning: " in line]
    says = lines[-1].rpartition("Warning: ")[2] if lines else ""
    return Seen(gpus, torch[:80], bool(cpu_build), says[:200])


def _look(spec: Mapping[str, Any], environment: Mapping[bytes, bytes]) -> Seen | None:
    try:
        done = subprocess.run(
            [*map(encode, spec["python"]), "-c", _LOOK],
            cwd=encode(spec["cwd"]),
            env=without_job(environment, spec),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
        )
    except (OSError, subprocess.SubprocessError):
        remove_container(spec, {os.fsdecode(name): os.fsdecode(each) for name, each in environment.items()})
        return None
    return parse(done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))
