"""Whether this user can write where a push, a job and its end will. Runs on a host: Python 3.8.

An attempt has the shape of `mnt.facts.host.WriteTest`. What another user could replace is not touched:
`leftovers.exposed` tells of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from mnt.remote.common.files import read
from mnt.remote.common.owners import Group, check_owners
from mnt.remote.common.refusal import Refused
from mnt.remote.common.writing import try_to_write
from mnt.remote.job.files import user_directory
from mnt.remote.probe.filesystems import Answer, holder, measure, parse_mounts
from mnt.remote.push.workdir import Workdir

_OPEN_TO_ALL = ("/tmp", "/dev/shm")  # noqa: S108 - everybody may make files there, and mnt's are checked


def trials(
    workdir: str, keep: Sequence[str], group: str | None, jobs_dir: str
) -> Mapping[str, Callable[[], list[Answer]]]:
    """Functions that try, by names that are not paths. Each may hang with its file system."""
    return {
        "writes of push": partial(_workdir, workdir, keep, group),
        "writes of jobs": partial(_attempts, [os.path.expanduser(jobs_dir)]),
        "writes of all": partial(_attempts, [*_OPEN_TO_ALL, user_directory()]),
    }


def collect(answers: Mapping[str, list[Answer] | None], workdir: str, jobs_dir: str) -> list[Answer]:
    """All attempts; a file system that did not answer in time is one with the result `hung`."""
    found: list[Answer] = []
    for path, some in zip((workdir, jobs_dir, _OPEN_TO_ALL[0]), answers.values()):
        path = os.path.expanduser(path)
        silent = {"path": path, "directory": path, "result": "hung", "space": None, "mount": None}
        found += [silent] if some is None else some
    return found


def _workdir(workdir: str, keep: Sequence[str], group: str | None) -> list[Answer]:
    try:
        place = Workdir(workdir, keep, group)
    except Refused:  # `exposed` tells of it
        return []
    shared = [os.path.join(place.shared, name) for name in place.keep]
    return _attempts(
        [os.fsdecode(path) for path in (place.workdir, place.directory, place.shared, *shared)], place.group
    )


def _attempts(paths: Sequence[str], group: Group | None = None) -> list[Answer]:
    """An attempt for each path, and only one where several will be made in the same directory."""
    mounts = parse_mounts(read("/proc/self/mounts"))
    places: dict[str, str] = {}  # existing directory -> the first path that will be there
    for path in paths:
        places.setdefault(_existing(path), path)
    return [
        _attempt(path, directory, mounts)
        for directory, path in places.items()
        if path in _OPEN_TO_ALL or _is_ours(path, group)
    ]


def _existing(path: str) -> str:
    """The path, or the directory above it that exists, in which it will be made."""
    while not os.path.lexists(path) and path != "/":
        path = os.path.dirname(path)
    return path


def _is_ours(path: str, group: Group | None) -> bool:
    """Whether nobody else could replace it, or what is above it."""
    with contextlib.suppress(Refused):
        check_owners(path, group)
        return True
    return False


def _attempt(path: str, directory: str, mounts: list[Answer]) -> Answer:
    result, space = try_to_write(directory), None
    with contextlib.suppress(OSError):
        space = measure(os.statvfs(directory))
    mount: dict[str, Any] | None = holder(mounts, os.path.realpath(directory))
    return {
        "path": path,
        "directory": directory,
        "result": result,
        "space": space,
        "mount": mount and mount["point"],
    }
