"""The files that a user wants back: of a job, or at paths. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
import tempfile
import time
from typing import Any, Callable, Iterator, NamedTuple, Sequence, Tuple

from mnt.remote.common.files import decode, encode, strerror
from mnt.remote.job.entry import require
from mnt.remote.job.files import JobPaths, read_about
from mnt.remote.push.contents import BYTE_CODE, files_of, leads_to_shared
from mnt.remote.push.releases import RELEASE_ID, Releases
from mnt.remote.push.workdir import Workdir, workdir_of

_LATER = 10.0  # seconds after a job's end; what only then was written is another job's
_LONGEST = 500  # characters of a path in a message
_BEFORE = 0.1  # seconds; the time of a file is up to a tick of the kernel's clock behind (time(7))

# A path relative to the top of a part, and its status; None: it cannot be read.
Found = Tuple[bytes, "os.stat_result | None"]


class Span(NamedTuple):
    """When a job ran, on the clock of a file system."""

    start: float
    end: float | None  # None: it still runs

    def wrote(self, found: os.stat_result) -> bool:
        """Whether a file has changed since the start. A copy can keep an old st_mtime, but no st_ctime."""
        return max(found.st_ctime, found.st_mtime) >= self.start - _BEFORE

    def is_later(self, found: os.stat_result) -> bool:
        """Whether both times of a file are after the end."""
        return self.end is not None and min(found.st_ctime, found.st_mtime) > self.end + _LATER


class Part(NamedTuple):
    """Files in one directory, or one file.

    A part with a `problem` has no files; if it is `absent`, it is not there. `names` are paths relative to
    `top`, each with all that is below; b"" is `top` itself.
    """

    top: bytes = b""
    names: Sequence[bytes] = (b"",)
    problem: str | None = None
    absent: bool = False
    span: Span | None = None  # only what a job wrote
    shared: bytes | None = None  # without byte code, and the links to this directory that mnt made
    without: bytes | None = None  # a directory, relative to `top`, whose files are no part of it

    def files(self) -> Iterator[Found]:
        """Every file, whatever its kind; links are not followed, apart from `top`. With a problem, none."""
        if self.problem is not None:
            return
        for path, found in self._all():
            if not self._may_be_new(path, found) or self._is_without(path):
                continue
            if self.shared is not None and (
                BYTE_CODE.search(path) or leads_to_shared(self.top, path, self.shared)
            ):
                continue
            yield path, found

    def _all(self) -> Iterator[Found]:
        for name in self.names:
            place = os.path.join(self.top, name) if name else self.top
            try:
                found = os.lstat(place)
            except OSError:
                yield name, None
                continue
            if not stat.S_ISDIR(found.st_mode):
                yield name, found
                continue
            for path, inside in files_of(place):
                yield _plain(os.path.join(name, path)) if inside is None else os.path.join(name, path), inside

    def _is_without(self, path: bytes) -> bool:
        return self.without is not None and path.startswith(self.without + b"/")

    def _may_be_new(self, path: bytes, found: os.stat_result | None) -> bool:
        """Whether the job may have written it, or in it: nothing new is in an old `lost+found`."""
        if self.span is None:
            return True
        try:
            return self.span.wrote(found or os.lstat(os.path.join(self.top, path)))
        except OSError:
            return True

    def is_later(self, found: os.stat_result) -> bool:
        return self.span is not None and self.span.is_later(found)


def parts_of(args: dict[str, Any]) -> list[Part]:
    """The parts that `mnt.tasks.fetch.Wanted` names, in its order. Raises Refused."""
    if args.get("job"):
        return job_parts(JobPaths.of(args), args["workdir"], args["without"])
    return path_parts(args["workdir"], args["group"], args["paths"])


def job_parts(paths: JobPaths, workdir: str | None, without: str | None) -> list[Part]:
    """The release, shared/ and the logs of a job, each with what the job wrote.

    Args:
        workdir: where the release must be: another node may be able to change what is noted of the job. None:
            a job of the head's own machine, which ran in any directory.

    Raises Refused.
    """
    entry, cwd = require(paths), read_about(paths).get("cwd")
    logs = Part(encode(paths.real(paths.directory)))
    if not isinstance(cwd, str) or not os.path.isabs(cwd):
        unknown = Part(problem="an older mnt started this job, and did not note where it ran")
        return [unknown, unknown, logs]
    top = encode(cwd)
    if workdir is not None and not _is_release(top, workdir):
        elsewhere = Part(
            problem=f"the job ran in {_shown(top)}, which is no release in the workdir {workdir}"
        )
        return [elsewhere, elsewhere, logs]
    shared = workdir_of(top).shared

    def written(directory: bytes, **rest: Any) -> Part:
        if entry["started"] is None:
            return Part(problem="the job has never run here")
        if not os.path.isdir(directory):
            return _absent(directory)
        ahead = _clock_ahead(directory)
        ended = None if entry["ended"] is None else entry["ended"] + ahead
        return Part(directory, span=Span(entry["started"] + ahead, ended), **rest)

    has_shared = entry["release"] is not None and os.path.isdir(shared)
    return [
        written(
            top, shared=shared, without=without and os.path.relpath(encode(without), os.path.realpath(top))
        ),
        written(shared) if has_shared else Part(names=()),
        logs,
    ]


def _is_release(top: bytes, workdir: str) -> bool:
    """Whether a path is that of a release, which may have been removed."""
    above, name = os.path.split(top)
    releases = os.path.realpath(Workdir(workdir).directory)
    return re.match(RELEASE_ID, decode(name)) is not None and os.path.realpath(above) == releases


def _clock_ahead(directory: bytes) -> float:
    """Seconds by which the clock of its file system is ahead of this host's: that of an NFS server, often.

    0.0 if no file can be made there.
    """
    try:
        with tempfile.TemporaryFile(dir=directory, prefix=b".mnt-clock-") as file:
            file.write(b"\n")
            file.flush()
            return os.fstat(file.fileno()).st_mtime - time.time()
    except OSError:
        return 0.0


def path_parts(workdir: str, group: str | None, wanted: Sequence[dict[str, str]]) -> list[Part]:
    """The parts for paths that a user names. Relative ones are in the current release. Raises Refused."""
    current: list[bytes] = []

    def base(path: bytes) -> bytes | None:
        if os.path.isabs(path):
            return path
        if not current:
            releases = Releases(workdir, (), group)
            current.append(releases.link if releases.current() else b"")
        return os.path.join(current[0], path) if current[0] else None

    return [_path_part(encode(each["path"]), encode(each["pattern"]), base) for each in wanted]


def _path_part(path: bytes, pattern: bytes, base: Callable[[bytes], bytes | None]) -> Part:
    place = base(os.path.expanduser(path))
    if place is None:
        return Part(problem="there is no current release, in which a relative path is looked for")
    try:
        os.stat(place)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return _absent(place)
        return Part(problem=f"{_shown(place)}: {strerror(error)}")
    top = os.path.realpath(place)
    if not pattern:
        return Part(top)
    if os.path.lexists(os.path.join(top, pattern)):
        return Part(top, (pattern,))
    found = sorted(glob.glob(os.path.join(glob.escape(top), pattern)))
    if not found:
        return _absent(os.path.join(place, pattern))
    return Part(top, [os.path.relpath(match, top) for match in found])


def _plain(path: bytes) -> bytes:
    """A path as `files_of` has it of a directory that cannot be listed: `x/`, or `.` for the top."""
    plain = os.path.normpath(path)
    return b"" if plain == b"." else plain


def _absent(path: bytes) -> Part:
    return Part(problem=f"it has no {_shown(path)}", absent=True)


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")[:_LONGEST]
