"""Releases on one host: the current one, and the host's part of a push.

Each task runs `mnt/remote/push/receive.py` on the host, which knows where releases are
(docs/architecture.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from mnt.fleet import HostConnection
from mnt.inventory.model import Host
from mnt.remote.common.forms import MOST_USES
from mnt.remote.push.releases import RELEASE_ID
from mnt.tasks.bounds import RELEASES, bound_of
from mnt.tasks.program import run_program
from mnt.tasks.shape import Count, Moment, Pid, Refusal, Short, granted, shaped, wrong_answer

Release = Annotated[str, Meta(pattern=RELEASE_ID)]


class Pushed(TypedDict):
    """Who pushed a release, as that user's mnt has told; see mnt.push.origin.Origin."""

    user: Short
    head: Short
    source: Short
    time: Moment
    mnt: Short
    commit: Short | None
    branch: Short | None


class FoundRelease(TypedDict):
    current: Release | None  # what `current` points to; None: nothing was pushed here
    path: str | None  # its absolute path, whether it exists or not
    manifest_sha: Short | None  # SHA-256 (hex) of its manifest, the same on all hosts that have the same tree
    pushed: Pushed | None  # None: unknown


def find_release(connection: HostConnection) -> FoundRelease:
    """Look for the current release in the host's workdir. Hashes no files.

    Raises HostError (phase `command`) if the workdir cannot be read, or `current` is not a link to a release.
    """
    args = {"action": "find", **_workdir(connection.target)}
    answer = run_program(connection, "push.receive", args)
    return shaped(connection.target.name, granted(connection.target.name, answer), FoundRelease)


class _Place(TypedDict):
    path: str | None


def find_place(connection: HostConnection) -> str | None:
    """Where in the workdir a shell may be: in the current release, else at its top; None: there is neither.

    Raises HostError if another user could have put files there.
    """
    args = {"action": "enter", **_workdir(connection.target)}
    answer = run_program(connection, "push.receive", args)
    return shaped(connection.target.name, granted(connection.target.name, answer), _Place)["path"]


class Foreign(TypedDict):
    """The files in a release that no push has brought."""

    files: Count
    bytes: Count
    names: Annotated[list[Short], Meta(max_length=10)]  # the first of them


class Use(TypedDict):
    """A process that uses a release, or a job (then `pid` is None)."""

    pid: Pid | None
    job: Short | None
    command: Short


class ListedRelease(TypedDict):
    release: Release
    files: Count
    bytes: Count
    foreign: Foreign
    uses: Annotated[list[Use], Meta(max_length=MOST_USES)]
    pushed: Pushed | None


class Listed(TypedDict):
    """The releases of a host, newest first."""

    current: Release | None
    previous: Release | None  # the one to which a rollback leads
    releases: list[ListedRelease]


_MOST_RELEASES = 1000  # of a host
_LIST_SECONDS = 600.0


def list_releases(connection: HostConnection) -> Listed:
    """All releases in the host's workdir. Hashes the files that may have changed.

    Raises HostError (phase `command`) if the workdir cannot be read, or this takes more than ten minutes.
    """
    host = connection.target.name
    releases: list[ListedRelease] = []

    def take(frame: dict[str, Any]) -> None:
        if len(releases) == _MOST_RELEASES:
            raise wrong_answer(host, f"more than {_MOST_RELEASES} releases")
        releases.append(shaped(host, frame, ListedRelease, "release"))

    args = {"action": "list", **_workdir(connection.target)}
    answer = run_program(
        connection, "push.receive", args, timeout=_LIST_SECONDS, on_frame=take, bound=RELEASES
    )
    return shaped(host, {**granted(host, answer), "releases": releases}, Listed)


def _workdir(host: Host) -> dict[str, Any]:
    return {"workdir": host.workdir, "group": host.workdir_group, "keep": host.keep}


class _Step(TypedDict):
    step: Short


class _Opened(_Step):
    numbers: list[Count] | None
    in_use: list[Release]


class _Looked(_Step):
    sees: list[Short]


class _Surveyed(_Step):
    current: Release | None
    previous: Release | None
    pushed: Pushed | None  # of the current release
    taken: list[Release]
    holds: dict[Release, bool]


class _Offered(_Step):
    lacks: Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{2})*\Z")]


class _Verified(_Step):
    sha: Short | None
    intact: bool


class _Left(TypedDict):
    release: Release
    why: Literal["absent", "current", "previous", "used", "foreign"]
    foreign: Foreign | None


class _Pruned(_Step):
    pruned: list[Release]
    left: list[_Left]


_FRAMES: dict[str, type[_Step]] = {
    "open": _Opened,
    "look": _Looked,
    "survey": _Surveyed,
    "offer": _Offered,
    "verify": _Verified,
    "prune": _Pruned,
}


class _Answer(TypedDict):
    current: Release | None
    refused: Refusal | None
    called_off: bool  # the head ended the push, not this host


def converse(
    connection: HostConnection,
    beacon: str,
    who: str,
    stdin: Iterable[bytes],
    on_frame: Callable[[dict[str, Any]], None],
    entries: int = 0,
) -> _Answer:
    """The host's part of a push, from the first step to the last; mnt.push.session is the other end.

    Args:
        beacon: the name, of no other host or push, of a file that shows which hosts share the workdir.
        who: who pushes: shown to others that find the workdir locked.
        stdin: the commands; their end ends the push.
        entries: of the manifest that is offered to the host: it answers with a bit for each.

    Returns the receiver's answer, at the end of the push.
    """
    target = connection.target

    def take(frame: dict[str, Any]) -> None:
        shape = _FRAMES.get(str(frame.get("step")), _Step)
        on_frame({**shaped(target.name, frame, shape, "frame")})

    args = {"action": "push", **_workdir(target), "beacon": beacon, "who": who}
    bound = bound_of("push.receive", entries // 4)
    answer = run_program(
        connection, "push.receive", args, stdin=stdin, timeout=None, on_frame=take, bound=bound
    )
    return shaped(target.name, {"refused": None, "called_off": False, **answer}, _Answer)
