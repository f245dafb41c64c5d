"""Who holds a port: also the job of this user, if it is one; and a port that is free. Python 3.8."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Sequence
from typing import Any

from mnt.remote.common.refusal import Refused
from mnt.remote.common.sockets import all_listening, listeners
from mnt.remote.job.entry import describe
from mnt.remote.job.files import JobPaths
from mnt.remote.job.others import jobs_here, master_port
from mnt.remote.job.spec import job_of

_AHEAD = 100  # ports that are looked at


def holders(port: int, jobs_dir: str, but: Sequence[str] = ()) -> list[dict[str, Any]]:
    """As `listeners`, with "job" and "job_state", which are None for other processes.

    A job that has the port as its master port, and does not listen yet, is among them, without a pid. The
    state is None if the job's files are not in `jobs_dir`. It may hang with its file system, but only if a
    job holds the port.

    Args:
        but: job and host of one whose plan does not count.
    """
    found = [{**holder, **_job(holder["pid"], jobs_dir)} for holder in listeners(port)]
    told = {holder["job"] for holder in found}
    for spec, state in jobs_here(but):
        if master_port(spec) == port and spec["job"] not in told:
            found.append({**_of_this_user(spec), "job": spec["job"], "job_state": state})
    return found


def free_port(above: int) -> int | None:
    """The first port above one on which nobody listens, and which no job of this user will bind."""
    taken = all_listening() | {master_port(spec) for spec, _ in jobs_here()}
    return next((port for port in range(above + 1, min(above + _AHEAD, 65536)) if port not in taken), None)


def _of_this_user(spec: dict[str, Any]) -> dict[str, Any]:
    uid = os.getuid()
    try:
        user: str | None = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = None
    return {"address": spec["master"]["addr"], "uid": uid, "user": user, "pid": None, "command": None}


def _job(pid: Any, jobs_dir: str) -> dict[str, Any]:
    found = None if pid is None else job_of(pid)
    paths = entry = None
    with contextlib.suppress(Refused):  # these are no names, or others can write to the files
        paths = JobPaths(jobs_dir, *found) if found else None
        entry = describe(paths) if paths else None
    return {"job": paths and paths.job, "job_state": entry and entry["state"]}
