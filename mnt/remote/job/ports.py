"""Who holds a port: also the job of this user, if it is one. Runs on a host: Python 3.8."""

from __future__ import annotations

import contextlib
from typing import Any

from mnt.remote.common.refusal import Refused
from mnt.remote.common.sockets import listeners
from mnt.remote.job.entry import describe
from mnt.remote.job.files import JobPaths
from mnt.remote.job.spec import job_of


def holders(port: int, jobs_dir: str) -> list[dict[str, Any]]:
    """As `listeners`, with "job" and "job_state", which are None for other processes.

    The state is None if the job's files are not in `jobs_dir`. It may hang with its file system, but only if
    a job holds the port.
    """
    return [{**holder, **_job(holder["pid"], jobs_dir)} for holder in listeners(port)]


def _job(pid: Any, jobs_dir: str) -> dict[str, Any]:
    found = None if pid is None else job_of(pid)
    paths = entry = None
    with contextlib.suppress(Refused):  # these are no names, or others can write to the files
        paths = JobPaths(jobs_dir, *found) if found else None
        entry = describe(paths) if paths else None
    return {"job": paths and paths.job, "job_state": entry and entry["state"]}
