"""What uses the releases on this host: processes, and jobs. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, Iterator, NamedTuple

from mnt.remote.common.files import command_line, read
from mnt.remote.common.owners import Group, accepts
from mnt.remote.job.files import specs_here
from mnt.remote.job.procs import all_pids
from mnt.remote.job.spec import job_of
from mnt.remote.push.entries import shown

_LONGEST = 100  # characters of a command line that are told
_MOST_WORDS = 1 << 16  # bytes of a command line that are read: that of another user may be very long
_REMOVING = ".removing-"


class Use(NamedTuple):
    """A process that uses a release, or a job (then `pid` is None)."""

    release: str
    pid: int | None
    job: str | None
    command: str  # its beginning, for people

    def document(self) -> dict[str, Any]:
        return {"pid": self.pid, "job": self.job, "command": self.command}


def uses(directory: bytes, group: Group | None = None) -> list[Use]:
    """The uses of the releases in `directory`, which is absolute.

    A process of this user, of root, or of a member of the group that shares the workdir uses a release in
    which its working directory or its program is, or which its command line names. Nothing is asked about
    the processes of others: they could make the kernel wait for an answer without end. A job uses its release
    as long as its node-local files exist: to its end, or until `mnt stop`.
    """
    there = _releases(directory)
    named = _pattern(directory)
    found: list[Use] = []
    for pid in all_pids():
        if not _counts(pid, group):
            continue
        names = there.intersection(named.findall("\0".join(_texts(pid))))
        if names:
            job, command = (job_of(pid) or (None,))[0], command_line(pid)[:_LONGEST]
            found += [Use(release, pid, job, command) for release in sorted(names)]
    found += [
        Use(release, None, job, "")
        for job, spec in specs_here()
        for release in there.intersection(named.findall(str(spec.get("cwd"))))
    ]
    return found


def _counts(pid: int, group: Group | None) -> bool:
    try:
        return accepts(os.stat(f"/proc/{pid}").st_uid, group)
    except OSError:  # it has ended
        return False


def _releases(directory: bytes) -> set[str]:
    """The ids of the releases that are there, also of those that are about to be removed."""
    try:
        names = {shown(name) for name in os.listdir(directory)}
    except OSError:
        return set()
    return {name[len(_REMOVING) :] if name.startswith(_REMOVING) else name for name in names}


def _pattern(directory: bytes) -> re.Pattern[str]:
    """Finds the ids of releases in paths, also of one that is about to be removed."""
    places = {os.fsdecode(path) for path in (directory, os.path.realpath(directory))}
    top = "|".join(map(re.escape, sorted(places)))
    return re.compile(
        rf"(?:{top})/(?:{re.escape(_REMOVING)})?([0-9]{{8}}-[0-9]{{6}}-[0-9a-f]{{8}})(?![\w.-])"
    )


def _texts(pid: int) -> Iterator[str]:
    for name in ("cwd", "exe"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            yield os.readlink(f"/proc/{pid}/{name}")
    yield read(f"/proc/{pid}/cmdline", _MOST_WORDS)
