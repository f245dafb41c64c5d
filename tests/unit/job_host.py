"""A host's side of jobs on this machine: jobctl and the supervisor as they arrive at a host, really run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import textwrap
import time
import uuid
from pathlib import Path
from typing import Any

from ports import free_port
from waiting import PATIENCE, alive, wait_for

from mnt.remote.job.channel import node_secret
from mnt.remote.job.procs import all_pids
from mnt.tasks.bundle import program_modules, script_source

_ORDINARY_USER = 65534  # nobody
_SYSTEM_PYTHON = "/usr/bin/python3"  # readable by every user, as the tests' own may not be

# Stands in for boot.py, without its SSH side.
_DRIVER = """
import json, sys, types
request = json.load(sys.stdin)
for name, source in request["modules"]:
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(source, name, "exec"), module.__dict__)
def emit(frame):
    print(json.dumps({"frame": frame}), flush=True)
answer = {}
for args in request["calls"]:
    answer = {**answer, **module.main(args, emit, None)}
    if answer.get("refused"):
        break
print(json.dumps({"answer": answer}), flush=True)
"""


class Call:
    """One run of jobctl that is under way."""

    def __init__(self, process: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
        self.process = process
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()
        process.stdin = None

    def frame(self) -> dict[str, Any]:
        """The next frame."""
        assert self.process.stdout is not None
        frame: dict[str, Any] = json.loads(self.process.stdout.readline())["frame"]
        return frame

    def answer(self) -> dict[str, Any]:
        """The answer, with the frames that were not yet taken as "frames"."""
        output, errors = self.process.communicate(timeout=PATIENCE)
        lines = [json.loads(line) for line in output.decode().splitlines()]
        assert lines, errors
        assert "answer" in lines[-1], errors
        return {**lines[-1]["answer"], "frames": [line["frame"] for line in lines[:-1]]}


class JobHost:
    """A host named `name`. Hosts that share a `directory` share their home, as over NFS."""

    def __init__(
        self,
        directory: Path,
        name: str = "node1",
        *,
        python: str = _SYSTEM_PYTHON,
        ordinary_user: bool = True,
    ) -> None:
        self.name = name
        self.directory = directory
        self.jobs_dir = str(directory / "jobs")
        self.python = python
        self.uid = _ORDINARY_USER if ordinary_user and os.getuid() == 0 else os.getuid()
        os.chown(directory, self.uid, -1)
        self.jobs: list[str] = []

    def begin(self, action: str, changes: dict[str, str] | None = None, **args: Any) -> Call:
        """Run list, or jobctl; "start" stages, spawns, and may wait for the port.

        `changes` are made to the supervisor's text.
        """
        supervisor = script_source("job.supervisor")
        for old, new in (changes or {}).items():
            assert old in supervisor
            supervisor = supervisor.replace(old, new)
        process = subprocess.Popen(
            [self.python, "-I", "-c", _DRIVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # so that what `frame` has not taken is there for `answer`
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(self.directory), "CALLERS": "own"},
            user=self.uid if os.getuid() == 0 else None,
            extra_groups=[] if os.getuid() == 0 else None,
            start_new_session=True,
        )
        program = "job.list" if action == "list" else "job.jobctl"
        args.update(action=action, supervisor=supervisor, jobs_dir=self.jobs_dir, host=self.name)
        calls = _stage_and_spawn(args) if action == "start" else [args]
        return Call(process, {"modules": program_modules(program), "calls": calls})

    def call(self, action: str, changes: dict[str, str] | None = None, **args: Any) -> dict[str, Any]:
        return self.begin(action, changes, **args).answer()

    # --- jobs

    def script(self, source: str, name: str = "train.py") -> None:
        """Put a script into the working directory."""
        path = self.directory / name
        path.write_text(textwrap.dedent(source))
        path.chmod(0o644)

    def spec(self, *args: str, **changes: Any) -> dict[str, Any]:
        """The spec of a job of one node that runs train.py with these arguments."""
        secret = "a secret of the job"
        return {
            "format": 1,
            "job": f"test-{uuid.uuid4().hex[:12]}",
            "host": self.name,
            "node_rank": 0,
            "nodes": [{"host": self.name, "node_rank": 0, "nproc": 1}],
            "engine": "fsdp",
            "release": "r1",
            "cwd": str(self.directory),
            "script": "train.py",
            "argv": [self.python, "train.py", *args],
            "env": {},
            "jobs_dir": self.jobs_dir,
            "master": {"addr": "127.0.0.1", "port": free_port()},
            "grace": 1.0,
            "secret": node_secret(secret, self.name) if changes.get("node_rank") else secret,
            "created": time.time(),
            **changes,
        }

    def start(
        self,
        spec: dict[str, Any],
        *,
        wait_for_port: bool = False,
        timeout: float = PATIENCE,
        changes: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        self.jobs.append(spec["job"])
        return self.call("start", changes, spec=spec, wait_for_port=wait_for_port, timeout=timeout)

    def stop(self, job: str, grace: float = 1.0) -> dict[str, Any]:
        return self.call("stop", job=job, grace=grace)

    def entry(self, job: str) -> dict[str, Any]:
        """The job as `list` has it."""
        return next(entry for entry in self.call("list")["jobs"] if entry["job"] == job)

    def state(self, job: str) -> dict[str, Any]:
        """The state file, as it is now."""
        state: dict[str, Any] = json.loads((Path(self.jobs_dir) / job / self.name / "state.json").read_text())
        return state

    def ended(self, job: str) -> dict[str, Any]:
        """The job's state once it is over."""
        return wait_for(lambda: state if (state := self.state(job))["ended"] else None)

    def output(self, job: str) -> str:
        return (Path(self.jobs_dir) / job / self.name / "output.log").read_text()

    def word(self, name: str) -> int:
        """The number that a script has written into a file of this name."""
        path = self.directory / name
        return wait_for(lambda: int(path.read_text()) if path.exists() and path.read_text() else None)

    def local(self, job: str) -> Path:
        """The node-local directory of a job."""
        return Path(f"/tmp/mnt-{self.uid}/{job}/{self.name}")

    def clean_up(self) -> None:
        """End whatever a test has left: what it should have ended itself shows in its own checks."""
        for job in self.jobs:
            answer = self.stop(job, grace=0)
            assert not answer.get("left"), answer
            assert not self.local(job).exists()

    def inhabitants(self) -> set[int]:
        """The living processes that work in this host's directory, in whatever session, of any parent.

        Looks for a while: whoever forks and dies, over and over, is not there at every look.
        """
        found: set[int] = set()
        for _ in range(10):
            found.update(pid for pid in all_pids() if works_in(pid, str(self.directory)))
            time.sleep(0.005)
        return found

    def remove(self) -> None:
        """After the `clean_up` of every host that shares the directory."""
        wait_for(lambda: not self.inhabitants())
        shutil.rmtree(self.directory, ignore_errors=True)


def _stage_and_spawn(args: dict[str, Any]) -> list[dict[str, Any]]:
    spec = args["spec"]
    names = {name: spec[name] for name in ("jobs_dir", "job", "host")}
    return [
        {**args, "action": "stage"},
        {**args, "action": "spawn", **names, "peer": spec.get("peer")},
        *([{**args, "action": "await port", **names}] if args["wait_for_port"] else []),
    ]


def works_in(pid: int, directory: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/cwd").startswith(directory) and alive(pid)
    except OSError:  # it has ended
        return False


def new_directory() -> Path:
    """A directory that an ordinary user may have: pytest's own are closed to others."""
    return Path(tempfile.mkdtemp(prefix="mnt-test-", dir="/tmp"))
