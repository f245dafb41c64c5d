"""What uses the releases on this host: processes, and jobs. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, Iterator, NamedTuple

from mnt.remote.common.files import command_line, read
from mnt.remote.job.files import specs_here
from mnt.remote.job.procs import all_pids
from mnt.remote.job.spec import job_of

_LONGEST = 100  # characters of a command line


class Use(NamedTuple):
    """A process that uses a release, or a job (then `pid` is None)."""

    release: str
    pid: int | None
    job: str | None
    command: str  # its beginning, for people

    def document(self) -> dict[str, Any]:
        return {"pid": self.pid, "job": self.job, "command": self.command}


def uses(directory: bytes) -> list[Use]:
    """The uses of the releases in `directory`, which is absolute.

    A process uses a release in which its working directory or its program is, or which its command line
    names; of another user's process only the last can be seen. A job uses its release as long as its
    node-local files exist: to its end, or until `mnt stop`.
    """
    named = _pattern(directory)
    found = [
        Use(release, pid, (job_of(pid) or (None,))[0], command_line(pid)[:_LONGEST])
        for pid in all_pids()
        for release in sorted(set(named.findall("\0".join(_texts(pid)))))
    ]
    found += [
        Use(release, None, job, "")
        for job, spec in specs_here()
        for release in set(named.findall(str(spec.get("cwd"))))
    ]
    return found


def _pattern(directory: bytes) -> re.Pattern[str]:
    """Finds the ids of releases in paths, also of one that is about to be removed (`.removing-`)."""
    places = {os.fsdecode(path) for path in (directory, os.path.realpath(directory))}
    top = "|".join(map(re.escape, sorted(places)))
    return re.compile(rf"(?:{top})/(?:\.removing-)?([0-9]{{8}}-[0-9]{{6}}-[0-9a-f]{{8}})(?![\w.-])")


def _texts(pid: int) -> Iterator[str]:
    for name in ("cwd", "exe"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            yield os.readlink(f"/proc/{pid}/{name}")
    yield read(f"/proc/{pid}/cmdline")
