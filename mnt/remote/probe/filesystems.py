"""Paths and mounts, even those that hang. Runs on a host: Python 3.8, standard library.

The answers have the shapes of `PathFacts`, `Space`, `Mounted` and `MountPoint` in `mnt.facts.host`.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import Any, Dict

from mnt.remote.common.files import strerror, unix_lines
from mnt.remote.common.writing import error_name, try_to_write
from mnt.remote.probe.children import run_in_children

Answer = Dict[str, Any]


def look_at(
    paths: Iterable[str],
    deadline: float,
    write: Container[str] = (),
    others: Mapping[str, Callable[[], Any]] | None = None,
) -> tuple[dict[str, Answer], Answer]:
    """The state of each path, and the results of the other jobs; all of them within `deadline` seconds.

    Args:
        paths: `~` is the home of the user who logged in. deadline: seconds; a path that takes longer counts
        as hung. write: those of the paths in which to create a file, and remove it. others: further functions
        that may hang, by names that are not paths; None is the result of such a one.
    """
    others = others or {}
    jobs = {path: partial(look, path, path in write) for path in paths}
    hung = {"kind": "hung", "real": None, "error": f"no answer in {deadline:g} s"}
    answers = run_in_children({**jobs, **others}, deadline)
    return {path: answers[path] or hung for path in jobs}, {name: answers[name] for name in others}


def look(path: str, write: bool = False) -> Answer:
    """The state of one path. It may hang with the file system."""
    path = os.path.expanduser(path)
    space, code = None, None
    try:
        # statfs asks the server, while stat may answer from the cache; it also triggers automounts.
        space = measure(os.statvfs(path))
        mode = os.stat(path).st_mode
        if not os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        kind, problem = ("dir" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"), None
    except (FileNotFoundError, NotADirectoryError) as error:
        kind, problem, code = "missing", strerror(error), error_name(error)
    except OSError as error:
        kind, problem, code = "unreadable", strerror(error), error_name(error)
    return {
        "kind": kind,
        "real": os.path.realpath(path),
        "error": problem,
        "code": code,
        "space": space,
        "write": try_to_write(path) if write and kind == "dir" else None,
    }


def measure(status: os.statvfs_result) -> Answer:
    """The size of a file system, and the space left for an ordinary user."""
    return {
        "size": status.f_blocks * status.f_frsize,
        "free": status.f_bavail * status.f_frsize,
        "inodes": status.f_files,
        "inodes_free": status.f_favail,
    }


def parse_mounts(text: str) -> list[Answer]:
    """The mounts of /proc/self/mounts, oldest first. Its fields are octal-escaped: proc(5)."""
    found: list[Answer] = []
    for line in unix_lines(text):
        fields = [
            re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), f) for f in line.split(" ")
        ]
        if len(fields) >= 4:
            source, point, kind, options = fields[:4]
            found.append({"point": point, "source": source, "type": kind, "options": options.split(",")})
    return found


def describe_mounts(
    paths: Iterable[str], looked_at: Mapping[str, Answer], mounts: list[Answer]
) -> dict[str, Answer]:
    """The mounts at each path, and the one that contains it. A symbolic link stands for its target."""
    described: dict[str, Answer] = {}
    for path in paths:
        real = looked_at[path]["real"]
        points = [os.path.normpath(path), real or path]
        stacks = [[mount for mount in mounts if mount["point"] == point] for point in points]
        described[path] = {
            "stack": stacks[0] or stacks[1],
            "inside": holder(mounts, real or path),
        }
    return described


def holder(mounts: list[Answer], path: str) -> Answer | None:
    """The mount that contains a path: of several with the longest path, the last one."""
    holders = [mount for mount in mounts if _holds(mount["point"], path)]
    return max(reversed(holders), key=lambda mount: len(mount["point"]), default=None)


def _holds(directory: str, path: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
