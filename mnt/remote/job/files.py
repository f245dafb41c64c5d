"""The names of a job's files on a host, which nothing else composes, and how these files are written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
from typing import Any

from mnt.remote.common.files import replace_file, strerror
from mnt.remote.common.refusal import Refused

FORMAT = 1
FINAL_STATES = ("finished", "failed", "stopped")

_TMP = "/tmp"
_PATIENCE = 1000  # attempts to make a directory inside one that other processes may remove
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:@%-]{0,254}")


class JobFiles:
    """The names of one node's job files in a directory of jobs: pure, and the same on host and head.

    `directory` may be on a file system that all nodes share: it contains no pids or other data that is valid
    on one host only, and nothing is locked there.
    """

    def __init__(self, jobs_dir: str, job: str, host: str) -> None:
        self.job, self.host = job, host
        self.job_directory = os.path.join(jobs_dir, job)
        self.directory = os.path.join(self.job_directory, host)
        self.spec = os.path.join(self.directory, "spec.json")
        self.about = os.path.join(self.directory, "about.json")
        self.state = os.path.join(self.directory, "state.json")
        self.output = os.path.join(self.directory, "output.log")
        self.ranks = os.path.join(self.directory, "ranks")
        self.python = os.path.join(self.directory, "python")
        self.supervisor_log = os.path.join(self.directory, "supervisor.log")


class JobPaths(JobFiles):
    """The names of one node's job files on that node; `local` is on this host only.

    Raises Refused if `job` or `host` is not a valid name.
    """

    def __init__(self, jobs_dir: str, job: str, host: str) -> None:
        if not _JOB.fullmatch(job):
            raise Refused(f"{job!r} is not a job's name", "use letters, digits, '.', '_' and '-'")
        if not _HOST.fullmatch(host):
            raise Refused(f"{host!r} is not a host's name")
        super().__init__(os.path.expanduser(jobs_dir), job, host)
        self.local = os.path.join(_TMP, f"mnt-{os.getuid()}", job, host)
        self.program = os.path.join(self.local, "supervisor.py")
        self.processes = os.path.join(self.local, "processes.json")
        self.stop_request = os.path.join(self.local, "stop.json")
        self.unsaved_state = os.path.join(self.local, "state.json")

    def make_local(self) -> None:
        """Make the node-local directory, new and private. Raises Refused, also if another user owns it."""
        for _ in range(_PATIENCE):
            try:
                for path in self._above_local():
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(path, 0o700)
                    _check_private(path)
                os.mkdir(self.local, 0o700)
            except FileNotFoundError:  # another job has ended just now, and taken the empty directory along
                continue
            except FileExistsError:
                raise Refused(
                    f"{self.local} exists: this job was started here before, and did not end properly",
                    "mnt stop JOB, then start it again",
                ) from None
            except OSError as error:
                raise Refused(f"cannot make {self.local}: {strerror(error)}") from error
            return
        raise Refused(f"cannot make {self.local}: another process keeps removing the directory above it")

    def has_local(self) -> bool:
        """Whether the node-local directory exists. Raises Refused if a level of it is not this user's alone.

        Called before each use. What was checked stays as it was: others cannot replace a directory of this
        user in /tmp (its sticky bit), nor anything in a directory that is closed to them.
        """
        try:
            for path in (*self._above_local(), self.local):
                _check_private(path)
        except FileNotFoundError:
            return False
        return True

    def remove_directory(self) -> None:
        """Remove this node's directory, and the job's if no other node has one."""
        shutil.rmtree(self.directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # it contains other nodes' files
            os.rmdir(self.job_directory)

    def remove_local(self) -> None:
        """Remove the node-local directory, and then those above it that are empty. Raises Refused."""
        if self.has_local():
            shutil.rmtree(self.local, ignore_errors=True)
        with contextlib.suppress(OSError):  # it contains another job's files
            for path in reversed(self._above_local()):
                os.rmdir(path)

    def _above_local(self) -> tuple[str, str]:
        """This user's directory, and the job's directory in it."""
        of_job = os.path.dirname(self.local)
        return os.path.dirname(of_job), of_job


def read_spec(paths: JobPaths) -> dict[str, Any]:
    """Raises Refused if there is none."""
    spec = read_json(paths.spec)
    if spec is None:
        raise Refused(
            f"{paths.spec} is missing or damaged", f"remove {paths.directory}, and start the job again"
        )
    return spec


def read_state(paths: JobPaths) -> dict[str, Any] | None:
    """This node's state: the node-local one if the disk has no room for the other; None if there is none."""
    return read_local(paths, paths.unsaved_state) or read_json(paths.state)


def read_local(paths: JobPaths, path: str) -> dict[str, Any] | None:
    """The JSON object in a file of the node-local directory, as `read_json`. Raises Refused."""
    return read_json(path) if paths.has_local() else None


def write_local(paths: JobPaths, path: str, document: Any) -> None:
    """Replace a file of the node-local directory. Raises OSError, also if the directory is not ours."""
    try:
        paths.has_local()
    except Refused as refusal:
        raise PermissionError(errno.EPERM, str(refusal)) from None
    write_json(path, document)


def remove_files(paths: JobPaths) -> None:
    """Remove every trace of a job that did not start here."""
    paths.remove_local()
    paths.remove_directory()


def _check_private(path: str) -> None:
    """Raises Refused unless `path` is a real directory of this user, closed to other users."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise Refused(f"{path} is not a directory", f"find out who made it (ls -ld {path}), and remove it")
    if found.st_uid != os.getuid():
        raise Refused(
            f"{path} belongs to uid {found.st_uid}, not to {os.getuid()}",
            f"ask that user, or root, to remove {path}",
        )
    if found.st_mode & 0o077:
        raise Refused(f"{path} is open to other users", f"chmod 700 {path}")


def write_json(path: str, document: Any) -> None:
    """Replace a file in one step, readable by its owner only. Raises OSError."""
    replace_file(path, json.dumps(document))


def read_json(path: str) -> dict[str, Any] | None:
    """The JSON object in a file; None if it does not exist, cannot be read, or holds something else."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
