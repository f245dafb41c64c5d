"""End one node's part of a job, with its supervisor alive, stopped or dead, and verify that it has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mnt.remote.common.refusal import Refused
from mnt.remote.common.sockets import listeners
from mnt.remote.job.entry import is_staged, living_supervisor, own_supervisor
from mnt.remote.job.files import (
    FINAL_STATES,
    FORMAT,
    JobPaths,
    read_about,
    read_state,
    remove_files,
)
from mnt.remote.job.inside import remove_container
from mnt.remote.job.procs import (
    SWEEP,
    Ending,
    Process,
    boot_id,
    find,
    identify,
    is_identity,
    members,
    newest_pids,
    pids_with_environment,
    read_process,
    read_processes,
    send_signal,
)
from mnt.remote.job.ranks import keep_rank_logs
from mnt.remote.job.spec import job_variables, session_environment
from mnt.remote.job.verdict import verdict

KEEP_FOR = 3.0  # seconds to copy the ranks' logs for a supervisor that is dead
SUPERVISOR_EXTRA = 5.0  # seconds that a supervisor gets to end, in addition to its own deadlines
LOOK_EVERY = 0.05


def stop_node(args: dict[str, Any]) -> dict[str, Any]:
    """See `mnt.tasks.job.stop_node`."""
    paths = JobPaths.of(args)
    grace = float(args["grace"])
    before = read_state(paths) or {}
    record = paths.read(paths.processes) or {}
    recorded = _recorded(record)
    staged = is_staged(paths)
    # Started from outside, a supervisor waits until its node may join: no process of the job has run then.
    waits = staged and os.path.exists(paths.start) and not os.path.exists(paths.join_request)

    by_supervisor = 0
    supervisor = living_supervisor(record) or own_supervisor(paths, before)
    about = read_about(paths)
    started = bool(about or paths.read(paths.spec) or supervisor)
    ran = before.get("state") not in FINAL_STATES if before else started
    if supervisor is not None:
        seen = [identify(process) for process in members(read_processes(), root=supervisor.pid)]
        recorded += seen
        _ask(paths, supervisor, {"grace": grace, "why": args.get("why")})
        by_supervisor = sum(find(each) is None for each in seen)
    ending = _end_rest(args["job"], args["host"], recorded, grace)
    spec = paths.read(paths.spec)
    if spec is not None and not waits:
        remove_container(spec, session_environment())
    port = _master_port(about, record)
    state = read_state(paths) or {}
    unsaved = os.path.exists(paths.unsaved_state)
    if staged and (waits or not ending.ended) and is_staged(paths):  # no process of it ever ran here
        ran = False
        remove_files(paths)
    else:
        keep_rank_logs(paths, KEEP_FOR)
        paths.remove_local()

    if ran and state.get("state") not in FINAL_STATES:
        _write_end(paths, state, ending, args.get("why"))
    elif unsaved:
        _write_state(paths, state)
    killed = 0 if waits else by_supervisor + ending.ended
    return {
        "status": "left" if ending.left else "stopped" if ran or killed else "none",
        "killed": killed,
        "left": ending.left,
        "port_free": port is None or not listeners(port),
    }


def stop_nodes(args: dict[str, Any]) -> dict[str, Any]:
    """See `mnt.tasks.job.stop_nodes`. All jobs at once, so that it takes no longer than the slowest."""

    def stop(job: str) -> dict[str, Any]:
        try:
            return stop_node({**args, "job": job})
        except Refused as refusal:
            return {"refused": refusal.document()}

    jobs = args["jobs"]
    with ThreadPoolExecutor(max_workers=len(jobs)) as pool:
        return {"stopped": dict(zip(jobs, pool.map(stop, jobs)))}


def _recorded(record: dict[str, Any]) -> list[dict[str, int]]:
    """The processes that the supervisor recorded last, if that was after the last boot."""
    supervisor, processes = record.get("supervisor"), record.get("processes")
    if not isinstance(supervisor, dict) or supervisor.get("boot_id") != boot_id():
        return []
    return [each for each in processes if is_identity(each)] if isinstance(processes, list) else []


def _ask(paths: JobPaths, supervisor: Process, request: dict[str, Any]) -> None:
    """Let the supervisor end the job, and kill it if it does not."""
    with contextlib.suppress(OSError):  # without the file it uses the job's own grace
        paths.write(paths.stop_request, request)
    send_signal(supervisor, signal.SIGTERM)
    send_signal(supervisor, signal.SIGCONT)  # it may have been stopped
    deadline = time.monotonic() + request["grace"] + Ending.PATIENCE + SUPERVISOR_EXTRA
    while find(identify(supervisor)) is not None:
        if time.monotonic() > deadline:
            send_signal(supervisor, signal.SIGKILL)
            return
        time.sleep(LOOK_EVERY)


def _end_rest(job: str, host: str, recorded: list[dict[str, int]], grace: float) -> Ending:
    """End the remaining processes of the job: found by environment, by the last record and by session."""

    environment = job_variables(job, host)

    def look() -> list[Process]:
        carriers = set(pids_with_environment(environment))
        found = members(read_processes(), carriers=carriers, recorded=recorded)
        return [process for process in found if process.pid != os.getpid()]

    def sweep(killing: bool) -> bool:
        """Whether no new process of the job appears for a while. If `killing`, KILLs each at once."""
        found, end = 0, time.monotonic() + SWEEP
        while time.monotonic() < end:
            for pid in pids_with_environment(environment, newest_pids()):
                process = read_process(pid)
                if process is not None and process.alive and pid != os.getpid():
                    found += 1
                    if killing:
                        send_signal(process, signal.SIGKILL)
        return not found

    ending = Ending(look, grace, time.monotonic(), sweep)
    while not ending.step(time.monotonic()):
        time.sleep(LOOK_EVERY)
    return ending


def _write_end(paths: JobPaths, state: dict[str, Any], ending: Ending, why: dict[str, Any] | None) -> None:
    """Write the final state for a supervisor that is dead."""
    now = time.time()
    reason = {"request": True, **({**why, "time": now} if why else {})}
    last = {
        **verdict(0, reason, None),
        "reason": reason,
        "ended": now,
        "killed": ending.ended,
        "left": ending.left,
    }
    _write_state(paths, {"format": FORMAT, **state, **last})


def _write_state(paths: JobPaths, state: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # on a full disk the job has ended all the same, and shows as lost
        paths.write(paths.state, state)


def _master_port(about: dict[str, Any], record: dict[str, Any]) -> int | None:
    master = about.get("master")
    port = (master if isinstance(master, dict) else record).get("port")
    return port if type(port) is int and 0 < port < 65536 else None
