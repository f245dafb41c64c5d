"""A supervisor that is started from outside, by pdsh, mpirun or srun: how it waits until its node may join.

Node 0 may join at once, the others as soon as node 0 has answered where it can be reached. See
`mnt.remote.job.join` for the head's side.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any, Callable, Mapping

from mnt.remote.job.files import JobPaths, remove_files
from mnt.remote.scheduler.slurm import fields

LOOK_EVERY = 0.05  # seconds
_SLURM_ANSWERS = 3.0  # seconds
_MOST = 64 * 1024  # bytes of its answer

Answer = Callable[[Mapping[str, Any]], bool]


def log_to(paths: JobPaths) -> None:
    """Write what is printed to the supervisor's log. Raises OSError."""
    log = paths.open_log(paths.supervisor_log)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)


def await_join(spec: Mapping[str, Any]) -> tuple[dict[str, Any], Answer] | None:
    """Wait until the head lets this node join: the spec with its peer, and the way to answer.

    None: it does not, or has taken the job back; then no file is left.
    """
    paths = JobPaths.of(spec)
    deadline = time.monotonic() + float(spec["join_within"])
    while os.path.isdir(paths.local):
        request = paths.read(paths.join_request)
        if request is not None:
            joined = {**spec, "peer": request["peer"]}
            paths.write(paths.spec, joined)
            return joined, lambda answer: _write_handshake(paths, answer)
        if time.monotonic() > deadline:
            break
        time.sleep(LOOK_EVERY)
    remove_files(paths)
    return None


def _write_handshake(paths: JobPaths, answer: Mapping[str, Any]) -> bool:
    """False: the job has been taken back."""
    try:
        paths.write(paths.handshake, answer)
    except OSError:
        return False
    return True


def why_from_outside(spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """Why a supervisor got TERM that `mnt stop` did not send; None: it was not started from outside."""
    starter = spec.get("starter")
    if not starter:
        return None
    return why_from_slurm(spec) or {"message": f"{starter} has ended it: SIGTERM", "lost": None}


def why_from_slurm(spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """Why Slurm ends the job, as it says itself; None: it does not, or has not started it."""
    number = os.environ.get("SLURM_JOB_ID")
    why = slurm_reason(_slurm_job(number)) if spec.get("starter") and number else None
    return {"message": f"Slurm has ended it: {why}", "lost": None} if why else None


def _slurm_job(number: str) -> str:
    """What Slurm says of a job; empty if it does not answer soon: the job is to end now."""
    command = ["scontrol", "show", "job", number]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SLURM_ANSWERS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout[:_MOST].decode("utf-8", "replace")


def slurm_reason(text: str) -> str | None:
    """Why Slurm ends a job, from `scontrol show job` (Slurm 22.05); None: that is unknown."""
    words = fields(text)
    state = words.get("JobState", "")
    if state == "TIMEOUT" or words.get("Reason") == "TimeLimit":
        return f"its time limit of {words.get('TimeLimit', '?')} is over"
    known = {
        "CANCELLED": "it was cancelled (scancel)",
        # Shown for each of these until all its processes have ended.
        "COMPLETING": "it was cancelled (scancel) or preempted, or a node has failed",
        "PREEMPTED": "another job has preempted it",
        "NODE_FAIL": "a node has failed",
        "OUT_OF_MEMORY": "it used more memory than it was allocated",
    }
    return known.get(state)
