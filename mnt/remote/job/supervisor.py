"""Own one node's part of a job: start it, write its state, end its whole process tree, tell the other nodes.

Runs on a host, detached from any login: `supervisor.py SPEC_FILE HANDSHAKE_FD`, started by jobctl.py, or
`supervisor.py SPEC_FILE`, started from outside (`mnt.remote.job.outside`). It is the subreaper of everything
that the job starts, so that orphans, even session leaders, become its children. It is one loop in one thread;
a signal or a message only records what to do.

The handshake is one JSON object, `{"pid", "peer"}` or `{"refused": {"message", "fix"}}`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import signal
import subprocess
import time
import traceback
from collections.abc import Generator, Mapping
from typing import Any

from mnt.remote.common.files import encode, read_json, strerror
from mnt.remote.common.refusal import Refused
from mnt.remote.common.sockets import listeners
from mnt.remote.job.channel import Event
from mnt.remote.job.failures import Failure, make_failure
from mnt.remote.job.files import (
    JobPaths,
    log_end,
    make_temporary_directory,
    temporary_directory,
)
from mnt.remote.job.inside import remove_container
from mnt.remote.job.limits import check_limits, raise_limits
from mnt.remote.job.outside import Answer, await_join, log_to, why_from_outside, why_from_slurm
from mnt.remote.job.peers import Hub, Spoke
from mnt.remote.job.procs import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    SWEEP,
    Ending,
    Process,
    identify,
    kill_children,
    members,
    pids_with_environment,
    prctl,
    read_process,
    read_processes,
)
from mnt.remote.job.ranks import RankLogs, keep_rank_logs
from mnt.remote.job.remains.readers import remains_of
from mnt.remote.job.secret import take_secrets
from mnt.remote.job.spec import (
    first_rank,
    job_environment,
    job_variables,
    rank_count,
    training_nic_down,
    world_size,
)
from mnt.remote.job.state import NodeState, log
from mnt.remote.job.verdict import reason_of, verdict

GRACE = 10.0  # seconds between TERM and KILL, unless the spec or a stop request sets another time

_LONGEST_GRACE = 7 * 86400.0  # of a stop request; more is no request of ours

_TICK = 1.0  # seconds between two turns of the loop without an event
_TICK_LISTENING = 0.1  # while we wait for the rendezvous port
_TICK_ENDING = 0.05
_KEEP_TURN = 0.2  # seconds of a turn for copying the ranks' logs
_KEEP_FOR = 60.0  # seconds for all of it
_KEEP_FOR_STOP = 3.0  # the same if the job is stopped: `mnt stop` waits no longer
_RECORD_EVERY = 1.0  # seconds between two records of the job's processes; longer if that would take
_RECORD_COST = 0.02  # more than this share of a processor


class Supervisor:
    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._spec = spec
        self._paths = JobPaths.of(spec)
        self._selector = selectors.DefaultSelector()
        self._link: Hub | Spoke | None = None
        self._output = -1  # descriptor of the job's log
        self._child: subprocess.Popen[bytes] | None = None
        self._code: int | None = None  # of the child, once it has ended
        self._reason: dict[str, Any] | None = None
        self._reason_time: float | None = None  # epoch seconds
        self._ending: Ending | None = None
        self._ranks = RankLogs(self._paths)
        self._keeping: Generator[None, None, None] | None = None  # copies the ranks' logs
        self._keep_until = 0.0  # monotonic
        self._failure: Failure | None = None
        self._stop_asked = self._stopping = False
        self._recorded: list[dict[str, int]] = []
        self._next_record = 0.0
        me = read_process(os.getpid())
        assert me is not None  # noqa: S101 - narrows the type
        self._state = NodeState(self._paths, me)

    def start(self) -> dict[str, Any]:
        """Start the job's first process. Returns the answer of the handshake. Raises Refused."""
        self._catch_signals()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._state.save()
        self._link = self._make_link()
        spec = self._spec
        limits = spec.get("ulimit") or {}
        check_limits(limits)  # those of this session: from outside, they may be lower
        secrets = take_secrets(self._paths, spec)
        make_temporary_directory()
        try:
            self._output = self._paths.open_log(self._paths.output)
        except OSError as error:
            raise Refused(f"cannot write {self._paths.output}: {strerror(error)}") from error
        try:
            self._child = subprocess.Popen(
                [encode(argument) for argument in spec["argv"]],
                cwd=encode(spec["cwd"]),
                env=job_environment(spec, os.environ, secrets),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
                preexec_fn=functools.partial(_as_child, limits),
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise Refused(f"cannot run {spec['argv'][0]}: {error}") from error
        if not self._awaits_port:
            self._state.note(state="running")
        self._record(time.monotonic())
        self._state.save()
        return {"pid": os.getpid(), "peer": self._link.endpoint if isinstance(self._link, Hub) else None}

    def run(self) -> None:
        """Run until the job has ended here, its state is written and the other nodes know."""
        if self._link is not None:
            self._link.tick(time.monotonic())  # the link must exist before the job can fail
        while not self._over(time.monotonic()):
            for key, _ in self._selector.select(self._timeout()):
                key.data(time.monotonic())
            now = time.monotonic()
            self._reap(now)
            if self._stop_asked:
                self._stop(now)
            self._watch_port()
            if self._ending is None:
                self._record(now)
            elif self._state["ended"] is None and self._has_ended(now) and self._has_kept():
                self._conclude()
            if self._state["ended"] is None:
                self._ranks.bound(now, self._descendants)
            if self._link is not None:
                self._link.tick(now)
                self._state.note(peer=self._link.status)
            self._state.save()
        if self._link is not None:
            self._link.close()
        self._leave()

    def ask_to_stop(self) -> None:
        """End the job in the next turn of the loop, as a TERM does."""
        self._stop_asked = True

    def abandon(self, message: str) -> None:
        """After a bug in the supervisor: leave nothing running, and write the state."""
        ending = Ending(self._look, 0.0, time.monotonic(), self._sweep)
        while not ending.step(time.monotonic()):
            time.sleep(_TICK_ENDING)
        keep_rank_logs(self._paths, _KEEP_FOR_STOP)
        failure = make_failure(f"the supervisor failed: {message}", time=time.time())
        self._state.note(state="failed", failure=failure, ended=time.time(), left=ending.left)
        self._leave()

    # --- the parts of a turn of the loop

    def _over(self, now: float) -> bool:
        if self._state["ended"] is None:
            return False
        if self._link is None or self._stopping or self._link.settled(now):
            return True
        # Then no other node was started; but without a port to wait for, all are.
        failed_at_once = (
            self._awaits_port and self._state["state"] == "failed" and not self._state["listening"]
        )
        return failed_at_once and isinstance(self._link, Hub) and not self._link.heard

    def _leave(self) -> None:
        self._state.leave(lambda: self._stopping or self._stop_asked)

    def _timeout(self) -> float:
        if self._ending is not None and self._state["ended"] is None:
            return _TICK_ENDING
        return _TICK_LISTENING if self._awaits_port and not self._state["listening"] else _TICK

    @property
    def _awaits_port(self) -> bool:
        return int(self._spec["node_rank"]) == 0 and self._spec.get("listens", True)

    def _reap(self, now: float) -> None:
        self._reap_all()
        if self._code is not None and self._ending is None:
            # Slurm signals all processes of a node at once: the job's may be the first to end.
            why = why_from_slurm(self._spec) if self._code != 0 else None
            if why is not None:
                self._end_because({"request": True, **why, "time": time.time()}, now, self._grace)
                self._tell(now)
                return
            if self._code != 0:
                self._failure = self._examine(before=None)
            self._tell(now)
            self._begin_ending(now, self._grace)

    def _reap_all(self) -> bool:
        """Collect all children that have ended, orphans too. True: no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if self._child is not None and pid == self._child.pid:
                self._code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                self._child.returncode = self._code

    def _stop(self, now: float) -> None:
        self._stop_asked, self._stopping = False, True
        request: dict[str, Any] = {}
        with contextlib.suppress(Refused):
            request = self._paths.read(self._paths.stop_request) or {}
        asked: Any = request.get("grace")
        usable = isinstance(asked, (int, float)) and 0 <= asked < _LONGEST_GRACE
        grace = float(asked) if usable else self._grace
        if self._ending is not None:
            self._ending.hurry(now + grace)
            return
        why = request.get("why") or (None if request else why_from_outside(self._spec))
        self._end_because({"request": True, **({**why, "time": time.time()} if why else {})}, now, grace)
        self._tell(now)

    def _hear(self, event: Event) -> None:
        """Take in that another node's part has ended, or is lost."""
        now = time.monotonic()
        if self._ending is None and self._code is None:
            own_nic = training_nic_down(self._spec) if event.kind == "lost" else None
            self._end_because(reason_of(event, time.time(), own_nic), now, self._grace)
            self._tell(now)

    def _end_because(self, reason: dict[str, Any], now: float, grace: float) -> None:
        self._reason, self._reason_time = reason, time.time()
        self._state.note(reason=reason)
        self._begin_ending(now, grace)

    def _begin_ending(self, now: float, grace: float) -> None:
        self._ending = Ending(self._look, grace, now, self._sweep)

    @property
    def _grace(self) -> float:
        return float(self._spec.get("grace", GRACE))

    def _watch_port(self) -> None:
        if not self._awaits_port or self._state["listening"] or self._ending is not None:
            return
        holders = {holder["pid"] for holder in listeners(int(self._spec["master"]["port"]))}
        if holders & {process.pid for process in self._descendants()}:
            self._state.note(listening=True, state="running")

    def _record(self, now: float) -> None:
        """Record the job's processes, for the clean-up if this supervisor is killed."""
        if now < self._next_record:
            return
        recorded = [identify(process) for process in self._descendants()]
        self._next_record = now + max(_RECORD_EVERY, (time.monotonic() - now) / _RECORD_COST)
        with contextlib.suppress(OSError):
            os.utime(temporary_directory())  # who cleans up /tmp by age leaves it to this user
        if recorded == self._recorded:
            with contextlib.suppress(OSError):
                os.utime(self._paths.processes)  # a sign of life
        else:
            self._recorded = recorded
            try:
                record = {
                    "supervisor": self._state["supervisor"],
                    "processes": recorded,
                    "port": self._spec["master"]["port"],
                }
                self._paths.write(self._paths.processes, record)
            except OSError as error:
                log(f"cannot write {self._paths.processes}: {error}")

    def _has_ended(self, now: float) -> bool:
        """Whether the process tree has ended; asks no more once it has."""
        assert self._ending is not None  # noqa: S101 - narrows the type
        if self._keeping is None and self._ending.step(now):
            self._keeping = self._ranks.keep()
            self._keep_until = now + _KEEP_FOR
        return self._keeping is not None

    def _has_kept(self) -> bool:
        """Copy some of the ranks' logs; whether this is over, because all is done or it takes too long."""
        assert self._keeping is not None  # noqa: S101 - narrows the type
        now = time.monotonic()
        if self._stopping:
            self._keep_until = min(self._keep_until, now + _KEEP_FOR_STOP)
        try:
            while time.monotonic() < now + _KEEP_TURN:
                if next(self._keeping, self) is self:
                    return True
        except (OSError, Refused) as error:
            log(f"cannot keep all of the ranks' logs in {self._paths.ranks}: {strerror(error)}")
            return True
        if now > self._keep_until:
            log("the ranks' logs are not all kept: that took too long")
            self._keeping.close()
            return True
        return False

    def _conclude(self) -> None:
        """Write how the process tree has ended."""
        assert self._ending is not None  # noqa: S101 - narrows the type
        self._reap_all()
        problem = remove_container(self._spec, os.environ)
        if problem is not None:
            log(f"cannot remove the container: {problem}")
        code = 0 if self._code is None else self._code
        if self._reason is not None:
            self._failure = self._examine(before=self._reason_time)
        remains = remains_of(self._spec)
        self._state.note(
            **verdict(code, self._reason, self._failure),
            alone=code == 0 and world_size(self._spec) > 1 and remains.alone(self._paths.python),
            rankless=remains.started(self._paths.real(self._paths.local_ranks), rank_count(self._spec)) == 0,
            ended=time.time(),
            killed=self._ending.ended,
            left=self._ending.left,
        )

    def _examine(self, before: float | None) -> Failure:
        """What failed on this node, from what its processes left before that time."""
        failure = remains_of(self._spec).failure(
            log_end(self._output),
            self._paths.real(self._paths.local_ranks),
            first_rank(self._spec),
            rank_count(self._spec),
            0 if self._code is None else self._code,
            before,
        )
        failure["time"] = failure["time"] or before or time.time()
        return failure

    def _tell(self, now: float) -> None:
        """Tell the other nodes that this one's part ends."""
        if self._link is None:
            return
        failure = self._failure
        if self._reason is None:
            kind = "finished" if self._code == 0 else "failed"
        elif "peer" in self._reason or "request" not in self._reason:
            kind = "ended"
        elif "message" in self._reason:
            kind, failure = "failed", make_failure(self._reason["message"], time=self._reason["time"])
        else:
            kind = "stopped"
        self._link.report(Event(self._spec["host"], kind, dict(failure) if failure else None), now)

    # --- helpers

    def _descendants(self) -> list[Process]:
        return members(read_processes(), root=os.getpid())

    def _look(self) -> list[Process]:
        """All processes of this job, to end them: not only our descendants."""
        carriers = set(pids_with_environment(job_variables(self._spec["job"], self._spec["host"])))
        return members(read_processes(), root=os.getpid(), carriers=carriers, recorded=self._recorded)

    def _sweep(self, killing: bool) -> bool:
        return kill_children(self._reap_all, SWEEP) if killing else self._reap_all()

    def _make_link(self) -> Hub | Spoke | None:
        spec, now = self._spec, time.monotonic()
        others = [node["host"] for node in spec["nodes"] if node["host"] != spec["host"]]
        if not others or not spec.get("secret"):
            return None
        if spec["node_rank"] != 0:
            peer = spec.get("peer")
            if peer is None:
                return None
            hub_host = next(node["host"] for node in spec["nodes"] if node["node_rank"] == 0)
            job, secret, host = spec["job"], spec["secret"], spec["host"]
            rendezvous = spec["master"] if spec.get("listens", True) else None
            return Spoke(
                self._selector, hub_host, peer, rendezvous, job, secret, host, self._hear, now, others
            )
        address = spec["master"]["addr"]
        try:
            return Hub(self._selector, address, spec["job"], spec["secret"], others, self._hear)
        except OSError as error:
            self._state.note(peer=f"unreachable: cannot listen on {address}: {strerror(error)}")
            return None

    def _catch_signals(self) -> None:
        """Let signals wake the loop up. SIGHUP (the login ended) has no effect."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self._selector.register(reading, selectors.EVENT_READ, lambda now: os.read(reading, 4096))
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda signum, frame: self.ask_to_stop())
        for signum in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(signum, lambda signum, frame: None)


def _as_child(limits: Mapping[str, int]) -> None:
    """In the child, before it becomes the job: end with the supervisor, and reset its signal handlers.

    Args:
        limits: see `raise_limits`.
    """
    raise_limits(limits)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)


def main(arguments: list[str]) -> int:
    """Supervise one node's part of a job. See the module's docstring."""
    spec = read_json(arguments[0])
    if spec is None:
        return 1
    answer: Answer
    if len(arguments) > 1:
        answer = functools.partial(_shake_hands, int(arguments[1]))
    else:
        log_to(JobPaths.of(spec))
        joined = await_join(spec)
        if joined is None:
            return 1
        spec, answer = joined
    supervisor = Supervisor(spec)
    try:
        try:
            started = supervisor.start()
        except Refused as refusal:
            answer({"refused": refusal.document()})
            return 1
        if not answer(started):
            supervisor.ask_to_stop()
        supervisor.run()
    except Exception as error:  # noqa: BLE001  (after any error, nothing may be left running)
        trace = traceback.format_exc()
        try:
            supervisor.abandon(traceback.format_exception_only(type(error), error)[-1].strip())
        finally:
            log(trace)
        return 1
    return 0


def _shake_hands(descriptor: int, answer: Mapping[str, Any]) -> bool:
    """False: the other side has gone away, so the start was called off."""
    try:
        os.write(descriptor, json.dumps(answer).encode("ascii"))
    except BrokenPipeError:
        return False
    finally:
        os.close(descriptor)
    return True
