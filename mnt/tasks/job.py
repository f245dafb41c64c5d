"""Jobs on one host: stage, start, list, read the logs, stop.

Each task runs `mnt/remote/job/jobctl.py` or `list.py` on the host. The files of a job are in
`<jobs_dir>/<job>/<host>/` (docs/architecture.md). The documents below are what is sent. Readers ignore
unknown keys, so that a newer `mnt` can stop jobs of an older one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from mnt.errors import HostError
from mnt.fleet import HostConnection
from mnt.remote.common.activation import PATIENCE
from mnt.remote.job.entry import MOST_NODES
from mnt.remote.job.inside import PATIENCE as IN_CONTAINER
from mnt.remote.job.list import answer_of
from mnt.tasks.bounds import MOST, bound_of, list_share
from mnt.tasks.bundle import script_source
from mnt.tasks.program import held, run_program
from mnt.tasks.shape import (
    Address,
    Count,
    ExitCode,
    HostName,
    JobName,
    Long,
    Moment,
    Pid,
    Port,
    Refusal,
    Short,
    complete,
    granted,
    shaped,
    wrong_answer,
)

OnFrame = Callable[[dict[str, Any]], None]
State = Literal["pending", "starting", "running", "finished", "failed", "stopped", "lost"]  # pending: staged

AT_ONCE = 64  # jobs that a host stops at the same time

_NONE: Mapping[str, str] = MappingProxyType({})


class SocketAddress(TypedDict):
    addr: Address
    port: Port


class NodeOfJob(TypedDict):
    host: HostName
    node_rank: Count
    nproc: Count


class NodeSpec(TypedDict):
    """What one node runs. In a spec of an older mnt, keys with a default may be missing."""

    format: int  # 1
    job: str
    host: str
    node_rank: int
    nodes: list[NodeOfJob]  # all nodes of the job, in rank order
    engine: str | None
    release: str | None
    command: str | None  # the program and its arguments, for people; default none
    cwd: str
    argv: list[str]
    env: dict[str, str]  # added to HOME, USER, LOGNAME, SHELL, PATH and LANG of the session, and nothing else
    secrets: list[str]  # further variables; their values are only in the node-local directory; default none
    jobs_dir: str  # may begin with "~"
    master: SocketAddress
    backend: str  # what starts the job; default ssh
    outside_id: str | None  # the job's id there, e.g. of Slurm; None: it has none
    starter: (
        str | None
    )  # the program that starts the supervisor (`join_node`); default: it is spawned over SSH
    passes: list[str]  # variables of the starter's that the job gets; default none
    programs: dict[str, str]  # what PATH of the login must have: name -> Debian package; default none
    join_within: float  # seconds that a supervisor from outside waits for `join_node`
    remains: str  # the reader of its processes' remains (mnt/remote/job/remains); default torchrun
    activate: list[str]  # lines for bash that make the environment of the job; default none
    ulimit: dict[str, int]  # soft limits by name (mnt/remote/job/limits.py), -1: unlimited; default none
    unset: list[str]  # variables that the first program does not get; default none
    container: dict[str, str] | None  # "program" and "name", to end it; default: it ends by itself
    paths: list[str]  # that must be in the container; default none
    elsewhere: bool  # whether the program of `python` is judged here, because it did not run this; default no
    python: list[str]  # the words that start the interpreter; needed with `gpus`
    gpus: int  # that torch must see before anything starts; default 0
    devices: list[str]  # those, as CUDA_VISIBLE_DEVICES names them; default: not known
    all_gpus: int  # of the host, by the inventory; default 0
    share_gpus: bool  # whether other jobs may have them too; default no
    subset: str | None  # the selected GPUs or slots of the host, for people; default: all
    path_prepend: list[str]  # directories put first on PATH
    python_path: list[str]  # directories put first on PYTHONPATH, after that of python_files; default none
    python_files: dict[str, str]  # path -> text, in a directory put first on PYTHONPATH; default none
    workdir_group: str | None  # the Unix group that shares the release; default: none
    unread: str | None  # a file of the tree with variables that were not read: refused if it is there
    script: str | None  # a file relative to cwd that must exist; None: there is none (`-m MODULE`)
    executable: str | None  # a program that must exist: a path relative to cwd, or one of PATH; default none
    files: list[str]  # further files relative to cwd that must exist; default none
    listens: bool  # whether the job has started only when node 0 LISTENs on the master port; default yes
    grace: float  # seconds between TERM and KILL; default 10
    peer: SocketAddress | None  # the `peer` of node 0's `Started`; None on node 0 itself
    secret: str  # random on node 0; on another node its `node_secret`: the supervisors authenticate with it
    created: float  # epoch seconds, the head's clock


class Failure(TypedDict):
    """`mnt.remote.job.failures.Failure`, as a host may answer it."""

    rank: Count | None
    local_rank: Count | None
    exit_code: ExitCode | None
    signal: Short | None
    message: Long
    traceback: Long | None
    time: Moment | None
    victim: bool


class Reason(TypedDict, total=False):
    """Why mnt ended a node's part; the keys that do not apply are missing or None."""

    request: bool | None  # it was stopped on request: there, or on the host `peer`
    peer: HostName | None  # the host whose part ended first
    failure: Failure | None  # of that host
    lost: HostName | None  # the host with which it lost contact, with `message` and `time`
    message: Long | None
    time: Moment | None
    nic: Short | None  # the host's own training NIC, if it was down then


class _Remarks(TypedDict, total=False):
    """What a person should know; what does not apply is missing."""

    command: Short | None  # what each rank runs, for people; an older mnt does not note it
    subset: Short | None  # the selected GPUs or slots of the host; an older mnt has none
    alone: bool  # node 0, finished: none of the job's ranks has joined a process group
    rankless: bool  # it has ended, and none of its ranks was ever started
    rebooted: bool  # of a node that is lost: the host has been booted since it was started


class JobEntry(_Remarks):
    """One node's part of one job."""

    job: JobName
    host: HostName
    node_rank: Count
    nodes: Annotated[list[NodeOfJob], Meta(max_length=MOST_NODES)]
    engine: Short | None
    release: Short | None
    backend: Short | None  # None: ssh, of a job of an older mnt, which had no other
    outside_id: Short | None
    master: SocketAddress | None
    created: Moment | None
    state: State
    exit_code: ExitCode | None  # of the culprit here, 128+N for a signal; None: it runs, or is unknown
    signal: Short | None
    failure: Failure | None
    reason: Reason | None  # None: it ended by itself
    started: Moment | None  # the host's clock
    ended: Moment | None
    listening: bool  # node 0: a process of the job listens on the master port
    peer: Short | None  # the state of the link between the supervisors: "connected", "unreachable: ...", ...


class Staged(TypedDict):
    """Absolute paths on the host; the supervisor is `python -I program spec [FD]`."""

    spec: str
    program: str


class Started(TypedDict):
    pid: Pid  # of the supervisor
    peer: SocketAddress | None  # node 0 of several: where the supervisors of the other nodes connect to


class Listening(TypedDict):
    listening: bool  # a process of the job listens on the master port
    node: JobEntry  # at the time of the answer: the job may have ended already


class Ranks(TypedDict):
    started: bool  # all ranks of this node
    node: JobEntry


class Why(TypedDict):
    """Why a part of a job is ended that should go on: it has failed then, and is not `stopped`."""

    message: str
    lost: str | None  # the node that cannot be reached, if that is why


class Stopped(TypedDict):
    status: Literal["stopped", "left", "none"]  # it ran, and has ended; processes remain; it did not run
    killed: Count  # number of processes that were ended
    left: list[Pid]  # pids that could not be ended
    port_free: bool  # no socket LISTENs on the master port


class _Jobs(TypedDict):
    now: Moment  # the host's clock
    jobs: list[
        JobEntry
    ]  # those first that run or are lost and were certainly started there; the newest first


class Jobs(_Jobs, total=False):
    problems: list[Refusal]  # why a job's files are not looked at: another user can write to them
    left_out: int  # number of further jobs, all ended, which are too many to be listed


class _SkippedFrame(TypedDict):
    skipped: Count
    offset: Count
    stream: Literal["output", "stdout", "stderr"]
    why: Literal["stopped", "not kept"]


class _DataFrame(TypedDict):
    data: str
    offset: Count
    stream: Literal["output", "stdout", "stderr"]


def check_node(connection: HostConnection, spec: NodeSpec) -> None:
    """Raise the HostError with which `stage_node` would refuse, unless it is about the files to write."""
    _ask(connection, {"action": "check", "spec": spec}, timeout=_to_stage(spec))


def stage_node(connection: HostConnection, spec: NodeSpec, secrets: Mapping[str, str] = _NONE) -> Staged:
    """Write the files of one node of a job on its host, to be started by `spawn_node`, or from outside.

    Args:
        secrets: values for the spec's `secrets`. They are in a file of the node-local directory until the job
            starts.

    Raises HostError (phase `command`) if the job cannot start there: working directory, script or interpreter
    missing, job name in use, no place for its files; on node 0 also if a process LISTENs on the master port
    (the message names it). No file is left then.
    """
    args = {
        "action": "stage",
        "spec": spec,
        "secrets": dict(secrets),
        "supervisor": script_source("job.supervisor"),
    }
    answer = _ask(connection, args, timeout=_to_stage(spec))
    return shaped(connection.target.name, answer, Staged)


def _to_stage(spec: NodeSpec) -> float:
    """Seconds for a host to check a node."""
    return 60.0 + (PATIENCE if spec.get("activate") else 0) + (IN_CONTAINER if spec.get("elsewhere") else 0)


def spawn_node(
    connection: HostConnection,
    jobs_dir: str,
    job: str,
    host: str,
    *,
    peer: SocketAddress | None = None,
) -> Started:
    """Start a staged node of a job under its own supervisor, which outlives this connection.

    Args:
        peer: the `peer` of node 0's `Started`; None on node 0.

    Raises HostError (phase `command`) if it was not started. No file is left then.
    """
    args = {"action": "spawn", "jobs_dir": jobs_dir, "job": job, "host": host, "peer": peer}
    return shaped(connection.target.name, _ask(connection, args, timeout=90.0), Started)


def join_node(
    connection: HostConnection,
    jobs_dir: str,
    job: str,
    host: str,
    *,
    peer: SocketAddress | None = None,
    argv: Sequence[str] = (),
    to_its_end: bool = False,
    timeout: float = 60.0,
) -> Started:
    """Let a staged node join its job, whose supervisor the spec's `starter` starts.

    Args:
        peer: the `peer` of node 0's `Started`; None on node 0.
        argv: the starter, to be run on this host first; empty: it is run elsewhere, or runs already.
        to_its_end: wait for the end of the starter too.
        timeout: seconds for the supervisor to be started.

    Raises HostError (phase `command`) if it was not started, or the starter has failed. No file is left then.
    """
    args = {
        "action": "join",
        "jobs_dir": jobs_dir,
        "job": job,
        "host": host,
        "peer": peer,
        "argv": list(argv),
        "to_its_end": to_its_end,
        "timeout": timeout,
    }
    return shaped(connection.target.name, _ask(connection, args, timeout=timeout + 30), Started)


def await_port(
    connection: HostConnection, jobs_dir: str, job: str, host: str, *, timeout: float = 60.0
) -> Listening:
    """Wait until node 0 LISTENs on the master port, its part has ended, or `timeout` seconds have passed.

    If the head is gone before, the host ends the node's part of the job.
    """
    args = {"action": "await port", "jobs_dir": jobs_dir, "job": job, "host": host, "timeout": timeout}
    answer = shaped(connection.target.name, _ask(connection, args, timeout=timeout + 30), Listening)
    return {**answer, "node": _about(connection, answer["node"], host, job)}


def await_ranks(
    connection: HostConnection, jobs_dir: str, job: str, host: str, *, timeout: float = 60.0
) -> Ranks:
    """Wait until all ranks of a node are started, its part has ended, or `timeout` seconds have passed."""
    args = {"action": "await ranks", "jobs_dir": jobs_dir, "job": job, "host": host, "timeout": timeout}
    name = connection.target.name
    answer = shaped(name, _ask(connection, args, timeout=timeout + 30), Ranks)
    return {**answer, "node": _about(connection, answer["node"], host, job)}


@contextlib.contextmanager
def held_start(
    connection: HostConnection, jobs_dir: str, job: str, host: str, *, grace: float = 10.0
) -> Iterator[None]:
    """While the block runs, a program on the host ends the node's part of the job if we are gone.

    It is started in the background: nothing waits for it, and nothing is raised if it fails.
    """
    args = {"action": "hold", "jobs_dir": jobs_dir, "job": job, "host": host, "grace": grace}
    over = threading.Event()

    def hold() -> None:
        with contextlib.suppress(HostError), held(connection, "job.jobctl", args):
            over.wait()

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    try:
        yield
    finally:
        over.set()
        holder.join()  # it must know that all is well before the connection is closed


def stop_node(
    connection: HostConnection,
    jobs_dir: str,
    job: str,
    host: str,
    *,
    grace: float = 10.0,
    why: Why | None = None,
) -> Stopped:
    """End one node's part of a job: TERM, then KILL after `grace` seconds; and verify that nothing is left.

    Works whether the supervisor is alive, dead or stopped. Touches no process of anything else. If the job
    was only staged, its files are removed, and the status is "none".
    """
    args = {"action": "stop", "jobs_dir": jobs_dir, "job": job, "host": host, "grace": grace, "why": why}
    return shaped(connection.target.name, _ask(connection, args, timeout=grace + 60), Stopped)


def stop_nodes(
    connection: HostConnection, jobs_dir: str, jobs: Sequence[str], host: str, *, grace: float = 10.0
) -> dict[str, Stopped | HostError]:
    """The same for several jobs, all at once: by job, the result, or why it was refused."""
    name = connection.target.name
    found: dict[str, Stopped | HostError] = {}
    for first in range(0, len(jobs), AT_ONCE):
        some = list(jobs[first : first + AT_ONCE])
        args = {"action": "stop all", "jobs_dir": jobs_dir, "jobs": some, "host": host, "grace": grace}
        answer = _ask(connection, args, timeout=grace + 60)
        each = shaped(name, answer.get("stopped"), dict[JobName, dict[str, Any]], "stopped")
        for job, stopped in complete(name, each, some, "stopped").items():
            try:
                found[job] = shaped(name, granted(name, stopped), Stopped, job)
            except HostError as error:
                found[job] = error
    return found


def list_jobs(
    connection: HostConnection,
    jobs_dir: str,
    host: str,
    *,
    wanted: str | None = None,
    most: int | None = None,
    timeout: float = 30.0,
) -> Jobs:
    """The jobs that have a directory for this host. A job whose supervisor has died is "lost".

    Args:
        wanted: the job that is asked for, if any: it is listed whatever is left out.
        most: bytes of the list as JSON; None: as if 256 hosts were asked. A job of 16 nodes has about 1500.
    """
    most = list_share(256) if most is None else most
    args = {"jobs_dir": jobs_dir, "host": host, "wanted": wanted, "most": most}
    answer = run_program(connection, "job.list", args, timeout=timeout, bound=bound_of("job.list", most))
    jobs = shaped(connection.target.name, granted(connection.target.name, answer), Jobs)
    for entry in jobs["jobs"]:
        _about(connection, entry, host, entry["job"])
    return jobs


def list_jobs_here(jobs_dir: str, host: str, *, wanted: str | None = None) -> Jobs:
    """The same for this machine, without a connection."""
    return shaped(host, granted(host, answer_of(jobs_dir, host, MOST.size, wanted)), Jobs)


def read_logs(
    connection: HostConnection,
    jobs_dir: str,
    job: str,
    host: str,
    *,
    rank: int | None = None,
    follow: bool = False,
    offsets: Mapping[str, int] | None = None,
    tail: int | None = None,
    on_frame: OnFrame,
) -> JobEntry:
    """Read a node's output, or one global rank's; with `follow` until the job is over.

    Frames, in order: `{"state": JobEntry}` first and at every change, and
    `{"data": str, "offset": int, "stream": "output" | "stdout" | "stderr"}`. `data` is at most 256 KiB of the
    log (UTF-8, other bytes as surrogate escapes, no character cut); `offset` is the byte of its stream at
    which it ends: pass it in `offsets` to continue after a dropped connection. If the job is stopped while it
    is followed, and much output has not been sent yet, only its end is, after
    `{"skipped": bytes, "offset": int, "stream": .., "why": "stopped"}`. What is not kept of a rank's long log
    is passed over in the same way, with "not kept" (docs/launch.md).

    Args:
        offsets: by stream, the byte at which to begin; 0 if it is not named.
        tail: of each stream that is not in `offsets`, only so many of its last lines, and what comes after.

    Returns the node's entry after everything was sent. Raises HostError if the host has no such job or rank.
    """
    args = {
        "action": "logs",
        "jobs_dir": jobs_dir,
        "job": job,
        "host": host,
        "rank": rank,
        "follow": follow,
        "offsets": dict(offsets or {}),
        "tail": tail,
    }
    name = connection.target.name

    def take(frame: dict[str, Any]) -> None:
        if "state" in frame:
            on_frame(
                {"state": _about(connection, shaped(name, frame["state"], JobEntry, "state"), host, job)}
            )
        else:
            shape = _SkippedFrame if "skipped" in frame else _DataFrame
            on_frame({**shaped(name, frame, shape, "frame")})

    answer = _ask(connection, args, timeout=None, on_frame=take)
    return _about(connection, shaped(name, answer.get("node"), JobEntry, "node"), host, job)


def _about(connection: HostConnection, entry: JobEntry, host: str, job: str) -> JobEntry:
    """The entry, as each one that a task returns. Raises HostError if it is about another host or job."""
    wrong = None
    if entry["host"] != host:
        wrong = f"it reports a job of {entry['host']!r}"
    elif entry["job"] != job:
        wrong = f"it reports job {entry['job']!r} instead of {job!r}"
    if wrong is not None:
        raise wrong_answer(connection.target.name, wrong)
    return entry


def _ask(
    connection: HostConnection,
    args: dict[str, Any],
    *,
    timeout: float | None,
    on_frame: OnFrame | None = None,
) -> Any:
    answer = run_program(connection, "job.jobctl", args, timeout=timeout, on_frame=on_frame)
    return granted(connection.target.name, answer)
