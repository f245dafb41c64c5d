"""Let a staged node join its job when pdsh, mpirun or srun start its supervisor, and not we over SSH.

They run one command on all nodes, with one environment for all. So each node has a program for `sh` in its
node-local directory, whose path is alike on all nodes but for the host's name. It starts the supervisor with
the environment of the login that staged the node.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mnt.remote.common.files import replace_file
from mnt.remote.common.refusal import Refused
from mnt.remote.job.entry import is_staged
from mnt.remote.job.files import JobPaths, log_end, read_spec, remove_files
from mnt.remote.job.hold import end_without_head
from mnt.remote.job.outside import LOOK_EVERY
from mnt.remote.job.spec import job_variables
from mnt.remote.job.stop import stop_node

_FOR_PROCESSES = 5.0  # seconds for a supervisor to answer when its starter has ended well


def put_start(paths: JobPaths, spec: Mapping[str, Any], session: Mapping[str, str]) -> None:
    """Write the program for `sh` that becomes the node's supervisor. Raises OSError."""
    environment = {**session, **job_variables(paths.job, paths.host)}
    given = [f"{name}={value}" for name, value in environment.items()]
    passed = [f'${{{name}+{name}="${name}"}}' for name in spec["passes"]]
    command = [sys.executable, "-I", "-X", "utf8", paths.program, paths.spec]
    words = ["exec", "env", "-i", *map(shlex.quote, given), *passed, *map(shlex.quote, command)]
    once = f"mkdir {shlex.quote(paths.claim)} 2>/dev/null || exit 0"  # whatever runs it again
    replace_file(paths.start, f"{once}\ncd / && {' '.join(words)} </dev/null\n")


def join_node(args: dict[str, Any]) -> dict[str, Any]:
    """See `mnt.tasks.job.join_node`. Raises Refused, and then leaves no file."""
    paths = JobPaths.of(args)
    if not is_staged(paths):
        raise Refused(f"nothing is staged here for job {args['job']}", "start it again: mnt launch")
    starter = read_spec(paths)["starter"]
    run: _Starter | None = None
    try:
        paths.write(paths.join_request, {"peer": args["peer"]})
        if args["argv"]:
            run = _Starter(paths, args["argv"])
        answer = _await_handshake(paths, starter, run, float(args["timeout"]), bool(args["to_its_end"]))
    except OSError as error:
        _take_back(paths, args, run)
        raise Refused(f"cannot start: {error}") from error
    except Refused:
        _take_back(paths, args, run)
        raise
    except SystemExit:  # the head is gone
        end_without_head(args)
        if run is not None:
            run.end()
        raise
    if "pid" in answer:
        return {"pid": answer["pid"], "peer": answer["peer"]}
    _take_back(paths, args, run)
    refused = answer.get("refused") or {}
    raise Refused(refused.get("message") or "the supervisor did not start", refused.get("fix"))


class _Starter:
    """pdsh or mpirun, run on this host. It lives on when this program has ended."""

    def __init__(self, paths: JobPaths, argv: Sequence[str]) -> None:
        self.name = os.path.basename(argv[0])
        self._log = paths.open_log(paths.starter_log)
        try:
            self._process = subprocess.Popen(
                argv,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError:
            os.close(self._log)
            raise

    @property
    def code(self) -> int | None:
        """None: it runs."""
        return self._process.poll()

    def end(self) -> None:
        """End it, with what it has started on this host."""
        with contextlib.suppress(OSError):  # it has ended
            os.killpg(self._process.pid, signal.SIGTERM)

    def last_line(self) -> str:
        lines = log_end(self._log).strip().splitlines()
        return lines[-1] if lines else "it printed nothing"


def _await_handshake(
    paths: JobPaths, starter: str, run: _Starter | None, timeout: float, to_its_end: bool
) -> dict[str, Any]:
    """What the supervisor answers. Raises Refused if it does not, or if its starter has failed."""
    until = time.monotonic() + timeout
    while True:
        code = None if run is None else run.code
        answer = paths.read(paths.handshake)
        if answer is not None and ("refused" in answer or run is None or code == 0 or not to_its_end):
            return answer
        if run is not None and code:
            raise Refused(f"{run.name} has ended with code {code}: {run.last_line()}")
        if code == 0:
            until = min(until, time.monotonic() + _FOR_PROCESSES)
        if time.monotonic() > until:
            raise Refused(
                f"{starter} has not started the job here", f"look into {paths.starter_log} of node 0"
            )
        time.sleep(LOOK_EVERY)


def _take_back(paths: JobPaths, args: Mapping[str, Any], run: _Starter | None) -> None:
    stop_node({**args, "grace": 0.0})
    if run is not None:
        run.end()
    remove_files(paths)
