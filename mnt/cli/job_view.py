"""What `mnt launch`, `logs` and `status` show of a job."""

from __future__ import annotations

import time

from mnt import ui
from mnt.errors import counted
from mnt.launch.jobs import Job


def duration(seconds: float | None) -> str:
    """`45 s`, `3 min 20 s`, `5 h 12 min`, `2 d 3 h`; "" if it is unknown."""
    if seconds is None:
        return ""
    whole = int(seconds)
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // part} {smaller}"
    return f"{whole} s"


def show_end(job: Job, as_json: bool = False) -> int:
    """Show how a job has ended; returns its exit code."""
    if as_json:
        ui.document(job.document(time.time()))
    for warning in job.warnings:
        ui.warn(warning)
    if job.state == "finished":
        took = duration(job.seconds(time.time()))
        ui.success(f"job {job.job} finished on {counted(len(job.nodes), 'node')}{took and f' in {took}'}")
        return 0
    culprit = job.culprit
    if culprit is not None and culprit.traceback:
        for line in culprit.traceback.splitlines():
            ui.info(f"{culprit.host} | {line}")
    why = f": {culprit.sentence()}" if culprit else ""
    ui.failure(f"job {job.job} {job.state}{why}")
    return 1 if job.exit_code is None else job.exit_code
