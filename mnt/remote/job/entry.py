"""The entry of a node's part of a job: from its files, checked against the processes that are alive."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mnt.remote.common.refusal import Refused
from mnt.remote.job.files import FINAL_STATES, JobPaths, read_json, read_state
from mnt.remote.job.procs import Process, boot_id, find, pids_with_environment
from mnt.remote.job.spec import marks

_OF_SPEC = (
    "job",
    "host",
    "node_rank",
    "nodes",
    "engine",
    "release",
    "backend",
    "outside_id",
    "master",
    "created",
)
_OF_STATE = (
    "state",
    "exit_code",
    "signal",
    "failure",
    "reason",
    "started",
    "ended",
    "peer",
)


def describe(paths: JobPaths) -> dict[str, Any] | None:
    """The node's entry (`mnt.tasks.job.JobEntry`). None: there is no such job here.

    A job that is staged but not started is "pending"; one that should run but has no supervisor is "lost".
    """
    job = read_json(paths.about) or read_json(paths.spec)  # an older mnt wrote only the spec
    state = read_state(paths)
    if not isinstance(job, dict):
        return None
    if not isinstance(state, dict):
        # Its supervisor has not written one yet.
        starting = any(True for _ in pids_with_environment(marks(job["job"], job["host"])))
        state = {"state": "starting" if starting else "pending" if is_staged(paths) else "lost"}
    elif state.get("state") not in FINAL_STATES and living_supervisor(state) is None:
        # It may have written its final state after we read it.
        state = read_state(paths) or state
        if state.get("state") not in FINAL_STATES:
            state["state"] = "lost"
    return {
        **{name: job.get(name) for name in _OF_SPEC},
        **{name: state.get(name) for name in _OF_STATE},
        "listening": bool(state.get("listening")),
    }


def is_staged(paths: JobPaths) -> bool:
    """Whether all its files exist, and no supervisor was ever started from them."""
    spawned = os.path.exists(paths.state) or os.path.exists(paths.processes)
    return not spawned and os.path.exists(paths.spec) and os.path.exists(paths.program)


def about(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a spec that goes into an entry: no environment, and no secret."""
    return {name: spec.get(name) for name in ("format", *_OF_SPEC)}


def living_supervisor(state: dict[str, Any]) -> Process | None:
    """The supervisor that a state names, if it is still alive: the same process since the same boot."""
    identity = state.get("supervisor")
    if not isinstance(identity, dict) or identity.get("boot_id") != boot_id():
        return None
    return find(identity)


def require(paths: JobPaths, job: str, host: str) -> dict[str, Any]:
    """The node's entry. Raises Refused if there is none."""
    entry = describe(paths)
    if entry is None:
        raise Refused(f"no job {job} on {host}", "mnt status lists the jobs")
    return entry


def list_entries(jobs_dir: str, host: str) -> list[dict[str, Any]]:
    """The entries of every job that has a directory for this host, newest first."""
    try:
        jobs = os.listdir(os.path.expanduser(jobs_dir))
    except OSError:
        return []
    entries = []
    for job in jobs:
        try:
            entry = describe(JobPaths(jobs_dir, job, host))
        except Refused:  # not a job's name: another file
            continue
        if entry is not None:
            entries.append(entry)
    return sorted(entries, key=lambda entry: entry["created"] or entry["started"] or 0, reverse=True)
