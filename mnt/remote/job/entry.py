"""The entry of a node's part of a job: from its files, checked against the processes that are alive."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from mnt.remote.common.forms import ADDRESS, CALENDAR_END, HOST_NAME, JOB_NAME, MOST_PID
from mnt.remote.common.owners import check_owners
from mnt.remote.common.refusal import Refused
from mnt.remote.job.failures import MESSAGE_CHARACTERS, TRACEBACK_BYTES, make_failure
from mnt.remote.job.files import FINAL_STATES, JobPaths, job_names, read_state, user_directory
from mnt.remote.job.procs import Process, boot_id, find, pids_with_environment
from mnt.remote.job.spec import job_variables

MOST_NODES = 16384  # of a job
FROZEN_AFTER = 10.0  # seconds; sooner than its peers lose a node that they do not hear

# The shapes of about.json and state.json, as `_take` reads them. Together they are `mnt.tasks.job.JobEntry`.
_COUNT, _PORT, _PID = range(2**63), range(1, 65536), range(1, MOST_PID + 1)
_TEXT, _RANK, _CODE, _TIME = (1024, None), (_COUNT, None), (range(256), None), (float, None)
_HOST = re.compile(HOST_NAME)
_MESSAGE, _TRACEBACK = slice(MESSAGE_CHARACTERS), slice(-TRACEBACK_BYTES, None)  # what is kept of them
_FAILURE = {
    **dict.fromkeys(("rank", "local_rank"), _RANK),
    "exit_code": _CODE,
    "signal": _TEXT,
    "traceback": (_TRACEBACK, None),
    "message": _MESSAGE,
    "time": _TIME,
    "victim": bool,
}
_REASON = {
    "request": (bool, None),
    **dict.fromkeys(("peer", "lost"), (_HOST, None)),
    "message": (_MESSAGE, None),
    "nic": _TEXT,
    "failure": (_FAILURE, None),
    "time": _TIME,
}
_ABOUT = {
    "job": re.compile(JOB_NAME),
    "host": _HOST,
    "node_rank": _COUNT,
    "nodes": [{"host": _HOST, "node_rank": _COUNT, "nproc": _COUNT}],
    **dict.fromkeys(("engine", "release", "backend", "outside_id", "command", "subset"), _TEXT),
    "master": ({"addr": re.compile(ADDRESS), "port": _PORT}, None),
    "created": _TIME,
}
_STATE = {
    "state": re.compile(r"(starting|running|finished|failed|stopped)\Z"),
    "exit_code": _CODE,
    "signal": _TEXT,
    "failure": (_FAILURE, None),
    "reason": (_REASON, None),
    "started": _TIME,
    "ended": _TIME,
    "listening": (bool, None),
    "alone": (bool, None),
    "rankless": (bool, None),
    "peer": _TEXT,
    "supervisor": ({"pid": _PID, "start_time": _COUNT, "boot_id": 1024}, None),
}


def describe(paths: JobPaths, *, local: bool = True) -> dict[str, Any] | None:
    """The node's entry (`mnt.tasks.job.JobEntry`). None: there is no such job here.

    A job that is staged but not started is "pending"; one that should run is "lost" if it has no supervisor,
    or one that has been stopped (SIGSTOP) for some time. Files whose contents are no job's count as missing.

    Args:
        local: look into the node-local directory too.

    Raises Refused if another user can write to a directory of these files.
    """

    def stored() -> Any:
        return _shaped(read_state(paths) if local else paths.read(paths.state), _STATE)

    about = _shaped(paths.read(paths.about), _ABOUT)
    about = about or _shaped(paths.read(paths.old_spec), _ABOUT)  # an older mnt wrote only the spec
    if about is None or (about["job"], about["host"]) != (paths.job, paths.host):
        return None
    state = stored()
    if state is None:
        # Its supervisor has not written one yet.
        starting = any(True for _ in pids_with_environment(job_variables(paths.job, paths.host)))
        state = dict.fromkeys(_STATE)
        state["state"] = "starting" if starting else "pending" if local and is_staged(paths) else "lost"
    elif state["state"] not in FINAL_STATES:
        supervisor = living_supervisor(state)
        if supervisor is None:
            # It may have written its final state after we read it.
            state = stored() or state
            if state["state"] not in FINAL_STATES:
                state["state"] = "lost"
        elif local and supervisor.state in "Tt" and (since := _last_sign(paths)) is not None:
            stopped = make_failure("its supervisor is stopped (SIGSTOP)", time=since)
            state = {**state, "state": "lost", "failure": stopped}
    supervised = state.pop("supervisor")
    rebooted = state["state"] == "lost" and bool(supervised) and supervised["boot_id"] != boot_id()
    remarks = {"rebooted": rebooted, **{name: state.pop(name) for name in ("alone", "rankless")}}
    subset = about.pop("subset")
    return {
        **about,
        **state,
        "listening": bool(state["listening"]),
        **({"subset": subset} if subset else {}),
        **{name: True for name, applies in remarks.items() if applies},
    }


def _last_sign(paths: JobPaths) -> float | None:
    """When the supervisor gave its last sign of life, if that is too long ago (epoch seconds); else None."""
    try:
        last = os.stat(paths.processes).st_mtime
    except OSError:
        return None
    return last if time.time() - last > FROZEN_AFTER else None


def as_failure(value: Any) -> Any:
    """A `mnt.remote.job.failures.Failure` of another host; None if it is none."""
    return _shaped(value, _FAILURE)


def _shaped(value: Any, shape: Any) -> Any:
    """The part of a value that has the shape; None if it has another one."""
    try:
        return _take(value, shape)
    except ValueError:
        return None


def _take(value: Any, shape: Any) -> Any:
    """The part of a value that has the shape. Raises ValueError if it has another one.

    A shape is `bool`; `float`, a time in epoch seconds; a range of integers; the length of the longest text;
    a slice, which is kept of any text; a pattern of a text; a dict of shapes (a missing key is None, other
    keys are left out); a list with the shape of all items; or (shape, None): None is possible too.
    """
    if isinstance(shape, tuple):
        return None if value is None else _take(value, shape[0])
    if isinstance(shape, dict) and isinstance(value, dict):
        return {key: _take(value.get(key), part) for key, part in shape.items()}
    if isinstance(shape, list) and isinstance(value, list) and len(value) <= MOST_NODES:
        return [_take(item, shape[0]) for item in value]
    if isinstance(shape, slice) and isinstance(value, str):
        value, shape = value[shape], len(value)
    if shape is bool:
        fits = type(value) is bool
    elif shape is float:
        fits = type(value) in (int, float) and 0 <= value < CALENDAR_END
    elif isinstance(shape, range):
        fits = type(value) is int and value in shape
    elif isinstance(shape, int):
        fits = isinstance(value, str) and len(value) <= shape and _is_text(value)
    else:
        fits = isinstance(value, str) and isinstance(shape, re.Pattern) and bool(shape.match(value))
    if not fits:
        raise ValueError
    return value


def _is_text(value: str) -> bool:
    """Whether it is Unicode, but for bytes of a file name."""
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def is_staged(paths: JobPaths) -> bool:
    """Whether all its files exist, and no supervisor was ever started from them."""
    if not paths.has_local() or os.path.exists(paths.state) or os.path.exists(paths.processes):
        return False
    specs = (paths.spec, paths.old_spec)  # an older mnt has staged it
    return any(map(os.path.exists, specs)) and os.path.exists(paths.program)


def about(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of a spec, and the reader of its logs: no environment, and no secret."""
    return {name: spec.get(name) for name in ("format", "remains", "cwd", *_ABOUT)}


def living_supervisor(state: dict[str, Any]) -> Process | None:
    """The supervisor that a state names, if it is still alive: the same process since the same boot."""
    identity = state.get("supervisor")
    if not isinstance(identity, dict) or identity.get("boot_id") != boot_id():
        return None
    return find(identity)


def own_supervisor(paths: JobPaths, state: dict[str, Any]) -> Process | None:
    """The living supervisor that a state names, if it has the job's variables.

    Other nodes may be able to write the state, and to name any process there.
    """
    named = living_supervisor(state)
    carriers = pids_with_environment(job_variables(paths.job, paths.host), [named.pid] if named else [])
    return named if any(carriers) else None


def require(paths: JobPaths) -> dict[str, Any]:
    """The node's entry. Raises Refused if there is none."""
    entry = describe(paths)
    if entry is None:
        raise Refused(f"no job {paths.job} on {paths.host}", "mnt status lists the jobs")
    return entry


def list_entries(jobs_dir: str, host: str, problems: list[Refused]) -> Iterator[tuple[dict[str, Any], bool]]:
    """The entry of every job that has a directory for this host; what prevents others is added to `problems`.

    With each comes whether it was certainly started here: it has a node-local directory too, which only this
    node can make, or a supervisor of its own. Other nodes may have made any number of others: each is read
    when it is asked for.

    Raises Refused if another user can write to the directory of jobs.
    """
    local = True
    try:
        check_owners(user_directory(), private=1)
    except Refused as refusal:
        problems.append(refusal)
        local = False
    for job in job_names(os.path.expanduser(jobs_dir)):
        try:
            paths = JobPaths(jobs_dir, job, host)
        except Refused:  # not a job's name: another file
            continue
        try:
            entry = describe(paths, local=local)
            started_here = local and os.path.isdir(paths.local)
            if entry is not None and entry["state"] in ("starting", "running") and not started_here:
                started_here = own_supervisor(paths, paths.read(paths.state) or {}) is not None
        except Refused as refusal:
            problems.append(refusal)
            continue
        if entry is not None:
            yield entry, started_here
