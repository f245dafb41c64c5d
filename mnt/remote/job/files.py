"""The names of a job's files on a host, which nothing else composes, and how these files are written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from typing import Any

from mnt.remote.common.files import (
    entries,
    open_regular,
    read_json,
    replace_file,
    strerror,
)
from mnt.remote.common.forms import HOST_NAME, JOB_NAME
from mnt.remote.common.owners import check_owners
from mnt.remote.common.refusal import Refused
from mnt.remote.common.unlinked import directory_without_links, open_regular_without_links
from mnt.remote.job.failures import tail

FORMAT = 1
START = "start"  # the program for sh that starts a staged node, in its node-local directory
FINAL_STATES = ("finished", "failed", "stopped")

_TMP = "/tmp"  # noqa: S108 - its levels are checked
_PATIENCE = 1000  # attempts to make a directory inside one that other processes may remove


def user_directory(uid: int | None = None) -> str:
    """The directory of a user's jobs that is on this host only; None: of this user."""
    return os.path.join(_TMP, f"mnt-{os.getuid() if uid is None else uid}")


def temporary_directory(uid: int | None = None) -> str:
    """The directory for what a user's jobs keep on this host only, which outlives them: caches, TMPDIR."""
    return os.path.join(_TMP, f"mnt-tmp-{os.getuid() if uid is None else uid}")


def make_temporary_directory() -> None:
    """Make it unless it exists. Raises Refused, also if it is not this user's alone."""
    path = temporary_directory()
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    except OSError as error:
        raise Refused(f"cannot make {path}: {strerror(error)}") from error
    check_owners(path, private=1)


class JobFiles:
    """The names of one node's job files in a directory of jobs: pure, and the same on host and head.

    `directory` may be on a file system that all nodes share: it contains no pids or other data that is valid
    on one host only, and nothing is locked there. Other nodes can write there too then, so nothing that is
    there is run: it is only shown.
    """

    def __init__(self, jobs_dir: str, job: str, host: str) -> None:
        self.job, self.host = job, host
        self.job_directory = os.path.join(jobs_dir, job)
        self.directory = os.path.join(self.job_directory, host)
        self.old_spec = os.path.join(self.directory, "spec.json")  # of an older mnt: read, never run
        self.about = os.path.join(self.directory, "about.json")
        self.state = os.path.join(self.directory, "state.json")
        self.output = os.path.join(self.directory, "output.log")
        self.ranks = os.path.join(self.directory, "ranks")  # of an ended part: see `JobPaths.rank_logs`
        self.supervisor_log = os.path.join(self.directory, "supervisor.log")
        self.starter_log = os.path.join(self.directory, "starter.log")  # of pdsh, mpirun or srun


class JobPaths(JobFiles):
    """The names of one node's job files on that node; `local` is on this host only.

    Raises Refused if `job` or `host` is not a valid name.
    """

    def __init__(self, jobs_dir: str, job: str, host: str) -> None:
        if not re.match(JOB_NAME, job):
            raise Refused(f"{job!r} is not a job's name", "use letters, digits, '.', '_' and '-'")
        if not re.match(HOST_NAME, host):
            raise Refused(f"{host!r} is not a host's name")
        super().__init__(os.path.expanduser(jobs_dir), job, host)
        self.local = os.path.join(user_directory(), job, host)
        self.spec = os.path.join(self.local, "spec.json")
        self.python = os.path.join(self.local, "python")
        self.program = os.path.join(self.local, "supervisor.py")
        self.processes = os.path.join(self.local, "processes.json")
        self.secrets = os.path.join(self.local, "secrets.json")
        self.stop_request = os.path.join(self.local, "stop.json")
        # For a start from outside: what to run there, what it waits for, and what it answers.
        self.start = os.path.join(self.local, START)
        self.claim = os.path.join(self.local, "started")
        self.join_request = os.path.join(self.local, "join.json")
        self.handshake = os.path.join(self.local, "handshake.json")
        self.unsaved_state = os.path.join(self.local, "state.json")

    @classmethod
    def of(cls, named: Mapping[str, Any]) -> JobPaths:
        """Those that the arguments of a program, or the spec of a node, name."""
        return cls(named["jobs_dir"], named["job"], named["host"])

    @property
    def local_ranks(self) -> str:
        """The directory of the ranks' logs, in which the engine opens files by name: see `JobFiles.ranks`."""
        return os.path.join(self.local, os.path.basename(self.ranks))

    def make_local(self) -> None:
        """Make the node-local directory, new and private, with that of the ranks' logs.

        Raises Refused, also if another user owns it.
        """
        of_job = os.path.dirname(self.local)
        for _ in range(_PATIENCE):
            try:
                for level, path in enumerate((os.path.dirname(of_job), of_job), start=1):
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(path, 0o700)
                    check_owners(path, private=level)
                os.mkdir(self.local, 0o700)
                os.mkdir(self.local_ranks, 0o700)
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
        """Whether the node-local directory exists. Raises Refused if a level is not this user's alone."""
        return check_owners(self.local, private=3)

    def has_directory(self) -> bool:
        """Whether the directory exists. Raises Refused if another user can write to a level of it."""
        return check_owners(self.directory)

    def real(self, path: str) -> str:
        """The path of a file of the job, without a link on the way to `jobs_dir`, or to the job's files here.

        Another node may have made the links behind `jobs_dir`, to files that only this one has. So all of
        these files are opened and replaced without following any.
        """
        if self._is_local(path):
            return os.path.join(os.path.realpath(self.local), os.path.relpath(path, self.local))
        jobs_dir = os.path.dirname(self.job_directory)
        return os.path.join(os.path.realpath(jobs_dir), os.path.relpath(path, jobs_dir))

    def read(self, path: str) -> dict[str, Any] | None:
        """The JSON object in one of these files, as `read_json`. Raises Refused if others can replace it."""
        if not self._has_directory_of(path):
            return None
        return (
            read_json(path)
            if self._is_local(path)
            else read_json(self.real(path), open_regular_without_links)
        )

    def rank_logs(self) -> str:
        """The directory with the ranks' logs, as `real`: that of the engine until the node's part has ended.

        Then it is the copy in the job's directory. An older mnt had no other. Raises Refused.
        """
        here = self.has_local() and os.path.isdir(self.local_ranks)
        return self.real(self.local_ranks if here else self.ranks)

    def open_log(self, path: str) -> int:
        """A descriptor that appends to a file in the job's directory, made if need be.

        Raises OSError, also for what is no regular file, or if another user can write to its directory, or if
        another node has put a link on the way to it.
        """
        above = self._directory_to_write(path)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW
            descriptor = os.open(os.path.basename(path), flags, 0o600, dir_fd=above)
        except OSError as error:
            why = "a link to another file" if error.errno == errno.ELOOP else strerror(error)
            raise OSError(error.errno, why, path) from None
        finally:
            os.close(above)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return descriptor

    def write(self, path: str, document: Any) -> None:
        """Replace one of these files.

        Raises OSError, also if another user can write to its directory, or if another node has put a link on
        the way to it: a job goes on, as on a full disk.
        """
        above = self._directory_to_write(path)
        try:
            replace_file(os.path.basename(path), json.dumps(document), dir_fd=above)
        finally:
            os.close(above)

    def remove_directory(self) -> None:
        """Remove this node's directory, and the job's if no other node has one. Raises Refused.

        Behind a link below `jobs_dir`, which another node may have made, nothing is removed.
        """
        if not self.has_directory():
            return
        with contextlib.suppress(OSError):  # such a link; or the job's directory contains other nodes' files
            above = directory_without_links(self.real(self.job_directory))
            try:
                shutil.rmtree(f"/proc/self/fd/{above}/{self.host}", ignore_errors=True)
            finally:
                os.close(above)
            os.rmdir(self.job_directory)

    def remove_local(self) -> None:
        """Remove the node-local directory, and then those above it that are empty. Raises Refused.

        By its path: each level is a directory that no other user can enter, and no other node has it.
        """
        if self.has_local():
            with contextlib.suppress(OSError):  # whoever reads the logs there takes the copy from now on
                os.rename(self.local_ranks, f"{self.local_ranks}.old")
            shutil.rmtree(self.local, ignore_errors=True)
        with contextlib.suppress(OSError):  # it contains another job's files
            of_job = os.path.dirname(self.local)
            for path in (of_job, os.path.dirname(of_job)):
                os.rmdir(path)

    def _directory_to_write(self, path: str) -> int:
        """A descriptor of a file's directory, which is this user's alone. Raises OSError."""
        try:
            exists = self._has_directory_of(path)
        except Refused as refusal:
            raise PermissionError(errno.EPERM, str(refusal)) from None
        if not exists:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.path.dirname(path))
        return directory_without_links(self.real(os.path.dirname(path)))

    def _has_directory_of(self, path: str) -> bool:
        return self.has_local() if self._is_local(path) else self.has_directory()

    def _is_local(self, path: str) -> bool:
        return f"{path}/".startswith(f"{self.local}/")


def specs_here() -> Iterator[tuple[str, dict[str, Any]]]:
    """(job, spec) of each of this user's jobs whose node-local files exist, whatever its `jobs_dir`.

    None if another user has made the directory: then this user has no jobs here.
    """
    try:
        check_owners(user_directory(), private=1)
    except Refused:
        return
    for job in entries(user_directory()):
        for host in entries(os.path.join(user_directory(), job)):
            with contextlib.suppress(Refused):
                paths = JobPaths("/", job, host)
                spec = paths.read(paths.spec)
                if spec is not None:
                    yield job, spec


def job_names(jobs_dir: str) -> list[str]:
    """The names in a directory of jobs. Raises Refused if another user can write to it."""
    return os.listdir(jobs_dir) if check_owners(jobs_dir) else []


def log_end(descriptor: int) -> str:
    """The end of a log of `JobPaths.open_log`, whatever has its name by now; empty if it is no file."""
    try:
        with open_regular(f"/proc/self/fd/{descriptor}") as file:
            return tail(file)
    except OSError:
        return ""


def read_spec(paths: JobPaths) -> dict[str, Any]:
    """What is to run, as the head has sent it. Raises Refused if there is none."""
    spec = paths.read(paths.spec)
    if spec is None:
        raise Refused(f"{paths.spec} is missing or damaged", f"mnt stop {paths.job}, then start it again")
    return spec


def read_about(paths: JobPaths) -> dict[str, Any]:
    """What was started, as written when it was staged; empty if that is not known. Raises Refused."""
    return paths.read(paths.about) or paths.read(paths.old_spec) or {}


def read_state(paths: JobPaths) -> dict[str, Any] | None:
    """This node's state: the node-local one if the disk has no room for the other; None if there is none.

    Raises Refused.
    """
    return paths.read(paths.unsaved_state) or paths.read(paths.state)


def remove_files(paths: JobPaths) -> None:
    """Remove every trace of a job that did not start here. Raises Refused."""
    paths.remove_local()
    paths.remove_directory()
