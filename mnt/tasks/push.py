"""Releases on one host: what `current` is, whether a release is there, and the host's part of a push.

Each task runs `mnt/remote/push/receive.py` on the host, which knows where releases lie
(docs/architecture.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypedDict

from mnt.fleet import HostConnection
from mnt.tasks.program import run_program
from mnt.tasks.shape import Refusal, granted, shaped


class FoundRelease(TypedDict):
    current: str | None  # the release that `current` leads to; None: nothing was pushed here
    has: bool  # the release that was asked for (`current` if none was) is here, with its manifest
    path: str | None  # absolute path of that release, whether it is there or not; None: no release
    manifest_sha: str | None  # SHA-256 (hex) of its manifest; the same on every host that holds the same tree


def find_release(connection: HostConnection, release: str | None = None) -> FoundRelease:
    """Look for a release in the host's workdir: `release`, or whatever `current` is. Nothing is hashed anew.

    Raises HostError (phase `command`) if the workdir cannot be read, or `current` is no link to a release.
    """
    args = {"action": "find", "workdir": connection.target.workdir, "release": release}
    answer = run_program(connection, "push.receive", args)
    return shaped(connection.target.name, granted(connection.target.name, answer), FoundRelease)


class _Step(TypedDict):
    step: str


class _Opened(_Step):
    mark: list[int] | None
    in_use: list[str]


class _Looked(_Step):
    sees: list[str]


class _Surveyed(_Step):
    current: str | None
    taken: list[str]
    holds: dict[str, bool]


_FRAMES: dict[str, type[_Step]] = {"open": _Opened, "look": _Looked, "survey": _Surveyed}


class _Answer(TypedDict):
    current: str | None
    refused: Refusal | None
    called_off: bool  # it is not this host that did so


def converse(
    connection: HostConnection,
    nonce: str,
    who: str,
    stdin: Iterable[bytes],
    on_frame: Callable[[dict[str, Any]], None],
) -> _Answer:
    """The host's part of a push, from its first step to its last; mnt.push.session has the other end.

    Args:
        nonce: a name that no other host and no other push has.
        who: who pushes, for whoever comes upon the lock.
        stdin: the commands; their end ends the push.

    Returns the receiver's answer; it takes as long as the push.
    """
    target = connection.target

    def take(frame: dict[str, Any]) -> None:
        shape = _FRAMES.get(str(frame.get("step")), _Step)
        shaped(target.name, frame, shape, "frame")
        on_frame(frame)

    args = {"action": "push", "workdir": target.workdir, "keep": target.keep, "nonce": nonce, "who": who}
    answer = run_program(connection, "push.receive", args, stdin=stdin, timeout=None, on_frame=take)
    return shaped(target.name, {"refused": None, "called_off": False, **answer}, _Answer)
