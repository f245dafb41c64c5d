"""`mnt` with jobs on this machine: no SSH, no root, no inventory, and a torchrun that needs no torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from job_host import works_in
from ports import free_port
from waiting import PATIENCE, wait_for

from mnt.remote.job.procs import all_pids, pids_with_environment

_ROOT = Path(__file__).parents[2]

# Stands in for torch.distributed.run: the same options, environment, log files and summary.
_TORCHRUN = """
import os, socket, subprocess, sys, threading, time
from string import Template

options, words = {}, sys.argv[1:]
while (word := words.pop(0)) != "--":
    name, _, value = word[2:].partition("=")
    options[name] = value
count, first = int(options["nproc-per-node"]), 0
listener = socket.create_server((options["master-addr"], int(options["master-port"])))
attempt = os.path.join(options["log-dir"], "none_x", "attempt_0")


def pump(pipe, log, prefix):
    with open(log, "wb") as file:
        for line in pipe:
            file.write(line)
            file.flush()
            sys.stdout.buffer.write(prefix + line)
            sys.stdout.buffer.flush()


ranks, pumps = [], []
for rank in range(count):
    directory = os.path.join(attempt, str(rank))
    os.makedirs(directory)
    program = [Template(word).safe_substitute(local_rank=rank) for word in words]
    how = ["-m"] if "module" in options else []
    env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count))
    ranks.append(subprocess.Popen([sys.executable, "-u", *how, *program], env=env, stdout=-1, stderr=-1))
    for name in ("stdout", "stderr"):
        log = os.path.join(directory, name + ".log")
        pumps.append(threading.Thread(target=pump, args=(getattr(ranks[-1], name), log, b"[rank%d] " % rank)))
        pumps[-1].start()
while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
    time.sleep(0.02)
failed = next((number for number, rank in enumerate(ranks) if rank.poll()), None)
if failed is not None:
    for rank in ranks:
        rank.terminate()
for each in (*[rank.wait for rank in ranks], *[pump.join for pump in pumps]):
    each()
if failed is not None:
    print("ChildFailedError: ")
    print("[0]:")
    print("  time      : " + time.strftime("%Y-%m-%d_%H:%M:%S"))
    print(f"  rank      : {failed} (local_rank: {failed})")
    print(f"  exitcode  : {ranks[failed].returncode} (pid: {ranks[failed].pid})")
    raise SystemExit(1)
"""


def make_python(directory: Path) -> str:
    """An interpreter that has the stand-in where torch would be."""
    venv.create(directory, symlinks=True, with_pip=False)
    packages = next(directory.glob("lib/python*/site-packages"))
    package = packages / "torch" / "distributed"
    package.mkdir(parents=True)
    for file in (package.parent / "__init__.py", package / "__init__.py"):
        file.touch()
    (package / "run.py").write_text(_TORCHRUN)
    about = packages / "torch-2.13.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
    return str(directory / "bin" / "python")


class LocalMnt:
    """The command line of a user who has a home directory, a working directory, and nothing else."""

    def __init__(self, directory: Path, python: str) -> None:
        self.python = python
        self.home, self.cwd, self.labs = directory / "home", directory / "tree", directory / "labs"
        self.home.mkdir()
        self.cwd.mkdir()
        self.port = free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MNT_", "PYTHON"))}
        self.env = {**kept, "HOME": str(self.home), "MNT_LAB_DIR": str(self.labs), "MINE": "no"}

    @property
    def api_env(self) -> dict[str, str]:
        """For a Python script of the interpreter that trains; what mnt needs comes from ours."""
        return {**self.env, "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, sys.path)])}

    def api_script(self) -> str:
        """The script of docs/api.md for this machine."""
        page = (_ROOT / "docs" / "api.md").read_text()
        script = page.split("```python\n")[2].split("```")[0]
        return script.replace("this_machine()", f"this_machine(master_port={self.port})")

    def script(self, source: str, name: str = "train.py") -> None:
        (self.cwd / name).write_text(source)

    def launch_words(self, *words: str) -> list[str]:
        return ["launch", "--via", "local", "--python", self.python, "--master-port", str(self.port), *words]

    def __call__(self, *words: str, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "mnt", *words],
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def launch(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self(*self.launch_words(*words))

    def attached(self, *words: str) -> subprocess.Popen[str]:
        """A launch that is under way."""
        return self.popen(*self.launch_words(*words))

    def popen(self, *words: str) -> subprocess.Popen[str]:
        """A command that is under way, in a session of its own; standard error comes with its output."""
        return subprocess.Popen(
            [sys.executable, "-m", "mnt", *words],
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def jobs(self) -> list[dict[str, Any]]:
        """As `mnt status` has them."""
        listed = self("status", "--json")
        assert listed.returncode == 0, listed.stderr
        jobs: list[dict[str, Any]] = json.loads(listed.stdout)["jobs"]
        return jobs

    def ended(self, job: str) -> dict[str, Any]:
        """The job, once it is over."""

        def look() -> dict[str, Any] | None:
            found = next(each for each in self.jobs() if each["job"] == job)
            return found if found["state"] not in ("pending", "starting", "running") else None

        return wait_for(look)

    def processes(self) -> list[int]:
        """Those of all jobs started here."""
        directory = self.home / ".mnt" / "jobs"
        jobs = os.listdir(directory) if directory.exists() else []
        return [pid for job in jobs for pid in pids_with_environment({"MNT_JOB": job})]

    def clean_up(self) -> None:
        """Nothing is left of any job: neither processes nor what lies in /tmp."""
        self("stop", "--all", "--grace", "0")
        assert self.processes() == []
        # What mnt itself has started on this machine ends with it.
        wait_for(lambda: not any(works_in(pid, str(self.cwd)) for pid in all_pids()))
        mine = Path(f"/tmp/mnt-{os.getuid()}")
        directory = self.home / ".mnt" / "jobs"
        for job in os.listdir(directory) if directory.exists() else ():
            assert not (mine / job).exists()
        shutil.rmtree(self.home)
