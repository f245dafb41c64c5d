"""Paths and mounts, whatever hangs. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import errno
import json
import os
import re
import select
import signal
import stat
import time
from collections.abc import Iterable, Mapping

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs an import of 3 ms
if TYPE_CHECKING:
    from typing import TypedDict

    class Seen(TypedDict):
        kind: str  # dir, file, other, missing, unreadable or hung
        real: str | None  # the path without symbolic links; None: it hangs
        error: str | None

    class Mount(TypedDict):
        point: str
        source: str
        type: str
        options: list[str]

    class Described(TypedDict):
        stack: list[Mount]  # the mounts at that very path, the last on top
        inside: Mount | None  # the mount that holds the path


def look_at(paths: Iterable[str], deadline: float) -> dict[str, Seen]:
    """What each path is, seen by a child of its own, so that a dead file server hangs that child only.

    All of them together take at most `deadline` seconds.
    """
    paths = list(dict.fromkeys(paths))
    children: dict[int, tuple[str, int]] = {}
    for path in paths:
        pid, reader = _start_child(path)
        children[reader] = (path, pid)
    seen: dict[str, Seen] = {}
    end = time.monotonic() + deadline
    while children:
        ready, _, _ = select.select(list(children), [], [], max(0.0, end - time.monotonic()))
        for reader in ready or list(children):
            path, pid = children.pop(reader)
            answer = os.read(reader, 65536) if ready else b""
            os.close(reader)
            seen[path] = json.loads(answer) if answer else _give_up(pid, deadline)
            if answer:
                os.waitpid(pid, 0)
    return {path: seen[path] for path in paths}


def _start_child(path: str) -> tuple[int, int]:
    """(pid, descriptor to read the answer from)."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        # Only the pipe stays open: a child that is left behind must not keep the SSH session's streams.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(writer, 3)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        os.closerange(4, 1024)
        os.write(3, json.dumps(look(os.path.expanduser(path))).encode())
    finally:
        os._exit(0)


def _give_up(pid: int, deadline: float) -> Seen:
    """A child that did not answer. It dies now, or when its file server comes back: nobody waits for that."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, os.WNOHANG)
    return {"kind": "hung", "real": None, "error": f"no answer in {deadline:g} s"}


def look(path: str) -> Seen:
    """One path, with nothing between us and a file system that hangs."""
    try:
        # statfs asks the server where stat may answer from the cache, and it makes an automount appear.
        os.statvfs(path)
        mode = os.stat(path).st_mode
        if not os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        kind, problem = ("dir" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"), None
    except (FileNotFoundError, NotADirectoryError) as error:
        kind, problem = "missing", error.strerror
    except OSError as error:
        kind, problem = "unreadable", error.strerror
    return {"kind": kind, "real": os.path.realpath(path), "error": problem}


def parse_mounts(text: str) -> list[Mount]:
    """/proc/self/mounts, oldest first. Its fields are octal-escaped: proc(5)."""
    found: list[Mount] = []
    for line in text.splitlines():
        fields = [
            re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), f) for f in line.split(" ")
        ]
        if len(fields) >= 4:
            source, point, kind, options = fields[:4]
            found.append({"point": point, "source": source, "type": kind, "options": options.split(",")})
    return found


def describe_mounts(
    paths: Iterable[str], looked_at: Mapping[str, Seen], mounts: list[Mount]
) -> dict[str, Described]:
    """What is mounted at each path, or around it. A symbolic link counts as what it leads to."""
    described: dict[str, Described] = {}
    for path in paths:
        real = looked_at[path]["real"]
        points = [os.path.normpath(path), real or path]
        stacks = [[mount for mount in mounts if mount["point"] == point] for point in points]
        holders = [mount for mount in mounts if _holds(mount["point"], real or path)]
        described[path] = {
            "stack": stacks[0] or stacks[1],
            # Of several with the longest path, the last mounted.
            "inside": max(reversed(holders), key=lambda mount: len(mount["point"]), default=None),
        }
    return described


def _holds(directory: str, path: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
