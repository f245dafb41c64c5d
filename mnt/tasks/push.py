"""Releases on one host: the current one, and the host's part of a push.

Each task runs `mnt/remote/push/receive.py` on the host, which knows where releases are
(docs/architecture.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypedDict

from mnt.fleet import HostConnection
from mnt.inventory.model import Host
from mnt.tasks.program import run_program
from mnt.tasks.shape import Refusal, granted, shaped


class FoundRelease(TypedDict):
    current: str | None  # the release that `current` points to; None: nothing was pushed here
    path: str | None  # its absolute path, whether it exists or not
    manifest_sha: str | None  # SHA-256 (hex) of its manifest, the same on all hosts that have the same tree


def find_release(connection: HostConnection) -> FoundRelease:
    """Look for the current release in the host's workdir. Hashes no files.

    Raises HostError (phase `command`) if the workdir cannot be read, or `current` is not a link to a release.
    """
    args = {"action": "find", **_workdir(connection.target)}
    answer = run_program(connection, "push.receive", args)
    return shaped(connection.target.name, granted(connection.target.name, answer), FoundRelease)


def _workdir(host: Host) -> dict[str, Any]:
    return {"workdir": host.workdir, "group": host.workdir_group, "keep": host.keep}


class _Step(TypedDict):
    step: str


class _Opened(_Step):
    numbers: list[int] | None
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
    called_off: bool  # the head ended the push, not this host


def converse(
    connection: HostConnection,
    beacon: str,
    who: str,
    stdin: Iterable[bytes],
    on_frame: Callable[[dict[str, Any]], None],
) -> _Answer:
    """The host's part of a push, from the first step to the last; mnt.push.session is the other end.

    Args:
        beacon: the name, of no other host or push, of a file that shows which hosts share the workdir.
        who: who pushes: shown to others that find the workdir locked.
        stdin: the commands; their end ends the push.

    Returns the receiver's answer, at the end of the push.
    """
    target = connection.target

    def take(frame: dict[str, Any]) -> None:
        shape = _FRAMES.get(str(frame.get("step")), _Step)
        shaped(target.name, frame, shape, "frame")
        on_frame(frame)

    args = {"action": "push", **_workdir(target), "beacon": beacon, "who": who}
    answer = run_program(connection, "push.receive", args, stdin=stdin, timeout=None, on_frame=take)
    return shaped(target.name, {"refused": None, "called_off": False, **answer}, _Answer)
