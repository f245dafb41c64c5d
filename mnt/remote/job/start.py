"""Start one node's part of a job: check and make its files (stage), then start its supervisor (spawn)."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from mnt.remote.common.activation import activated
from mnt.remote.common.containers import kind_of
from mnt.remote.common.files import make_directories, parse_json, replace_file, strerror
from mnt.remote.common.forms import EXPOSED
from mnt.remote.common.owners import check_owners, find_group, shared_group
from mnt.remote.common.programs import judged
from mnt.remote.common.refusal import Refused
from mnt.remote.job.entry import about, is_staged, living_supervisor, require
from mnt.remote.job.files import (
    FINAL_STATES,
    JobPaths,
    log_end,
    make_temporary_directory,
    read_about,
    read_spec,
    read_state,
    remove_files,
    temporary_directory,
)
from mnt.remote.job.gpus import check_gpus
from mnt.remote.job.hold import end_without_head
from mnt.remote.job.inside import look_inside
from mnt.remote.job.join import put_start
from mnt.remote.job.limits import check_limits
from mnt.remote.job.others import check_devices, jobs_here, master_port
from mnt.remote.job.ports import holders
from mnt.remote.job.remains.readers import remains_of
from mnt.remote.job.secret import put_secrets
from mnt.remote.job.spec import job_variables, rank_count, session_environment
from mnt.remote.job.stop import stop_node

HANDSHAKE = 30.0  # seconds: enough for a slow disk; the job itself may start slowly
LOOK_EVERY = 0.05


def check_node(args: dict[str, Any]) -> dict[str, Any]:
    """See `mnt.tasks.job.check_node`. Raises Refused."""
    _checked(args)
    return {}


def _checked(args: dict[str, Any]) -> dict[str, Any]:
    """The spec, with the environment that its `activate` makes. Raises Refused."""
    spec = args["spec"]
    why = args.get("_boot", {}).get("why", "")
    if why.startswith(EXPOSED):
        raise Refused(f"{spec['argv'][0]}: {why}", "set `python` of this host in the inventory")
    session, secrets = session_environment(), args.get("secrets", {})
    if spec.get("activate"):
        spec = {**spec, "activated": activated(spec["activate"], session)}
    _check(spec, {**(spec.get("activated") or session), **secrets})
    check_owners(temporary_directory(), private=1)  # the supervisor makes it
    check_limits(spec.get("ulimit") or {})
    _check_others(spec)
    if not kind_of(spec.get("python") or [""]):  # else when it can have its files
        check_gpus(spec, session, secrets)
    return dict(spec)


def stage_node(args: dict[str, Any]) -> dict[str, Any]:
    """See `mnt.tasks.job.stage_node`. Raises Refused, and then leaves no file."""
    spec = _checked(args)
    paths = JobPaths.of(spec)
    _write_files(paths, spec, args["supervisor"], args.get("secrets", {}))
    with _nothing_left(paths):
        _check_others(spec, earlier=True)  # one may have been staged since
        if kind_of(spec.get("python") or [""]):
            make_temporary_directory()
            look_inside(spec, session_environment(), args.get("secrets", {}))
            check_gpus(spec, session_environment(), args.get("secrets", {}))
    return {"spec": paths.spec, "program": paths.program}


def spawn_node(args: dict[str, Any]) -> dict[str, Any]:
    """See `mnt.tasks.job.spawn_node`. Raises Refused, and then leaves no file."""
    paths = JobPaths.of(args)
    if not is_staged(paths):
        raise Refused(f"nothing is staged here for job {args['job']}", "start it again: mnt launch")
    spec = {**read_spec(paths), "peer": args["peer"]}
    with _nothing_left(paths):
        paths.write(paths.spec, spec)
        return _spawn(paths, args["jobs_dir"], session_environment())


def await_port(args: dict[str, Any]) -> dict[str, Any]:
    """See `mnt.tasks.job.await_port`. Raises Refused."""
    deadline = time.monotonic() + float(args["timeout"])
    paths = JobPaths.of(args)
    try:
        while time.monotonic() < deadline:
            state = read_state(paths) or {}
            if state.get("listening") or state.get("state") in FINAL_STATES:
                break
            if living_supervisor(state) is None:
                break
            time.sleep(LOOK_EVERY)
    except SystemExit:  # the head is gone
        end_without_head(args)
        raise
    entry = require(paths)
    return {"listening": entry["listening"], "node": entry}


def await_ranks(args: dict[str, Any]) -> dict[str, Any]:
    """See `mnt.tasks.job.await_ranks`. Raises Refused."""
    deadline = time.monotonic() + float(args["timeout"])
    paths = JobPaths.of(args)
    remains = remains_of(read_about(paths))
    while True:
        entry = require(paths)
        count = rank_count(entry)
        started = remains.started(paths.rank_logs(), count) == count
        if started or entry["state"] in (*FINAL_STATES, "lost") or time.monotonic() > deadline:
            return {"started": started, "node": entry}
        time.sleep(LOOK_EVERY)


# --- checks ------------------------------------------------------------------------------------------------


def _check(spec: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Raises Refused, naming what is missing, if the job cannot start."""
    cwd, program = spec["cwd"], spec["argv"][0]
    if not os.path.isdir(cwd):
        raise Refused(f"working directory missing: {cwd}", "mnt push")
    script = spec.get("script")
    if spec["release"] is None:  # the user's own directory, as for a push: the script is as the user named it
        check_owners(cwd, shared_group(cwd), inside_closed=True)
    else:
        group = spec.get("workdir_group")
        check_owners(
            os.path.join(cwd, script or ""),
            None if group is None else find_group(group),
            inside_closed=True,
        )
    if script is not None and not os.path.isfile(os.path.join(cwd, script)):
        push = "" if spec["release"] is None else ", or push the tree that has it: mnt push"
        raise Refused(f"script missing: {script} (in {cwd})", f"check its path, relative to {cwd}{push}")
    for name in spec.get("files", ()):
        if not os.path.isfile(os.path.join(cwd, name)):
            raise Refused(f"file missing: {name} (in {cwd})", f"check its path, relative to {cwd}")
    unread = spec.get("unread")
    if unread is not None and os.path.exists(os.path.join(cwd, unread)):
        raise Refused(
            f"{unread} in {cwd} has variables, and was not read: mnt launch was started elsewhere",
            f"start it in the directory that was pushed, which has {unread}",
        )
    other = "; or --via ssh" if spec.get("starter") else ""
    for name, package in spec.get("programs", {}).items():
        if shutil.which(name, path=environment.get("PATH", os.defpath)) is None:
            raise Refused(f"{name} is not installed", f"apt install {package}, or its like{other}")
    if spec.get("elsewhere"):
        judged(spec["python"], {**environment, **spec["env"]}, spec.get("workdir_group"))
    path = [*spec.get("path_prepend", ()), spec["env"].get("PATH", environment.get("PATH", os.defpath))]

    def missing(name: str) -> bool:
        named = os.path.join(cwd, name) if "/" in name else name
        return shutil.which(named, path=os.pathsep.join(path)) is None

    if missing(program):
        raise Refused(f"interpreter missing: {program}", "set `python` of this host in the inventory")
    executable = spec.get("executable")
    if executable is not None and missing(executable):
        raise _without_program(executable, cwd)


def _without_program(name: str, cwd: str) -> Refused:
    """Why a program cannot be run that is not there, or not executable."""
    if "/" in name:
        return Refused(f"{name} is not executable (in {cwd})", f"chmod +x {shlex.quote(name)}, and mnt push")
    in_tree = os.path.isfile(os.path.join(cwd, name))
    return Refused(
        f"program missing: {name} (not on PATH)",
        f"./{name} names the one in the tree"
        if in_tree
        else "install it, or name its path, relative to the tree",
    )


def _check_others(spec: Mapping[str, Any], *, earlier: bool = False) -> None:
    """Raises Refused, naming the job or process, if another one has the master port or GPUs of the spec.

    Args:
        earlier: only jobs count that were made earlier: of two that look at each other, one starts.
    """
    own = (spec["job"], spec["host"])
    others = list(jobs_here(own))
    if earlier:
        mine = (spec.get("created") or 0.0, spec["job"])
        others = [each for each in others if (each[0].get("created") or 0.0, each[0]["job"]) < mine]
    port = master_port(spec)
    if port is not None and (not earlier or any(master_port(other) == port for other, _ in others)):
        _check_port(port, spec["jobs_dir"], own)
    check_devices(spec, others)


def _check_port(port: int, jobs_dir: str, own: tuple[str, str]) -> None:
    """Raises Refused, naming the process, if anything LISTENs on the port, or another job will."""
    found = holders(port, jobs_dir, own)
    if found:
        described = "; ".join(dict.fromkeys(map(_describe_holder, found)))
        jobs = [holder["job"] for holder in found if holder["job"]]
        stop = f"mnt stop {jobs[0]}" if jobs else "stop it"
        raise Refused(
            f"master port {port} is taken by {described}",
            f"{stop}, or use another port: --master-port, or network.master_port in the inventory",
        )


def _describe_holder(holder: Mapping[str, Any]) -> str:
    user = holder["user"] or f"uid {holder['uid']}"
    if holder["pid"] is None:
        if holder["job"]:
            return f"job {holder['job']}, which is {holder['job_state']}"
        return f"a process of user {user}"
    of_job = f", of job {holder['job']}" if holder["job"] else ""
    return f"pid {holder['pid']} of user {user}{of_job}: {holder['command']}"


# --- the files ---------------------------------------------------------------------------------------------


def _write_files(paths: JobPaths, spec: Mapping[str, Any], program: str, secrets: Mapping[str, str]) -> None:
    paths.has_directory()  # raises Refused if another user can write to a level of it
    try:
        make_directories(paths.job_directory)
        os.mkdir(paths.directory, 0o700)
    except FileExistsError:
        raise Refused(f"job {spec['job']} exists here already", f"mnt status {spec['job']}") from None
    except OSError as error:
        raise Refused(f"cannot make {paths.directory}: {strerror(error)}") from error
    try:
        paths.make_local()
    except Refused:
        paths.remove_directory()
        raise
    with _nothing_left(paths):
        paths.write(paths.spec, spec)
        paths.write(paths.about, about(spec))
        replace_file(paths.program, program)
        put_secrets(paths, secrets)
        if spec.get("starter"):
            put_start(paths, spec, session_environment())
        _put_python_files(paths, spec.get("python_files", {}))


def _put_python_files(paths: JobPaths, files: Mapping[str, str]) -> None:
    """Write files, by relative path, below a directory for PYTHONPATH. Raises OSError, Refused."""
    if files and os.pathsep in paths.python:
        raise Refused(
            f"PYTHONPATH cannot name {paths.python}: it contains {os.pathsep!r}", "use other names of hosts"
        )
    for name, text in files.items():
        path = os.path.join(paths.python, name)
        make_directories(os.path.dirname(path))
        replace_file(path, text)


@contextlib.contextmanager
def _nothing_left(paths: JobPaths) -> Iterator[None]:
    """Remove the job's files if the block raises OSError, which becomes Refused, or Refused."""
    try:
        yield
    except OSError as error:
        remove_files(paths)
        raise Refused(f"cannot start: {error}") from error
    except Refused:
        remove_files(paths)
        raise


# --- the supervisor ----------------------------------------------------------------------------------------


def _spawn(paths: JobPaths, jobs_dir: str, environment: dict[str, str]) -> dict[str, Any]:
    """Start the supervisor, in its own session and without our open files, and wait for its handshake."""
    reading, writing = os.pipe()
    log = paths.open_log(paths.supervisor_log)
    try:
        try:
            supervisor = subprocess.Popen(
                [sys.executable, "-I", "-X", "utf8", paths.program, paths.spec, str(writing)],
                cwd="/",
                # With the job's variables it can be found at once.
                env={**environment, **job_variables(paths.job, paths.host)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[writing],
                start_new_session=True,
            )
        finally:
            os.close(writing)
        answer = _hear(reading)
        if "pid" in answer:
            return {"pid": answer["pid"], "peer": answer["peer"]}
        stop_node({"jobs_dir": jobs_dir, "job": paths.job, "host": paths.host, "grace": 0.0})
        supervisor.wait()
        refused = answer.get("refused") or {}
        last_line = log_end(log).strip().rpartition("\n")[2] or "it printed nothing"
        message = refused.get("message") or f"the supervisor did not start: {last_line}"
        raise Refused(message, refused.get("fix"))
    finally:
        os.close(log)


def _hear(reading: int) -> dict[str, Any]:
    """The JSON that comes through the pipe until its other end is closed; empty if that takes too long."""
    deadline = time.monotonic() + HANDSHAKE
    text = b""
    with open(reading, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            data = pipe.read(65536)
            if not data:
                return _answer(text)
            text += data
    return {}


def _answer(text: bytes) -> dict[str, Any]:
    """The JSON object of a handshake; empty if it is none: the supervisor has died while it wrote."""
    try:
        answer = parse_json(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
