"""Files of a host: looked for, listed, and received. The head's half of `mnt/remote/fetch/fetch.py`."""

from __future__ import annotations

import binascii
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypedDict, TypeVar

from msgspec import Meta

from mnt.fleet import HostConnection
from mnt.remote.common.forms import FETCH_FILES, FETCH_LIST, held
from mnt.tasks.bounds import Bound, bound_of
from mnt.tasks.program import run_program
from mnt.tasks.shape import Count, Short, granted, shaped, wrong_answer

T = TypeVar("T")

_LOOK_SECONDS = 300.0  # for a survey, and for a list: both only look at names and times
_PART = 4096  # bytes of JSON about one part in an answer

_NAME = Annotated[str, Meta(max_length=2 * 4096)]  # PATH_MAX, and a name in a directory as deep as that
_INT64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Pattern(NamedTuple):
    """A path that a user names: a directory or file, and a pattern in it (`""`: all of it)."""

    path: str
    pattern: str = ""


@dataclass(frozen=True)
class Wanted:
    """What is wanted of a host: a job's parts, which are its release, shared/ and its logs; or paths.

    `without`: of a job of this machine alone, which ran in any directory: where it is fetched to, which is no
    part of that. The release of any other job is in the host's workdir.
    """

    job: str | None
    paths: tuple[Pattern, ...] = ()
    without: str | None = None

    @property
    def parts(self) -> int:
        """The number of its parts."""
        return len(self.paths) if self.job is None else 3

    @property
    def bound(self) -> Bound:
        """Of the answer to a survey, and of a list."""
        return bound_of("fetch.fetch", _PART * self.parts)

    def args(self, connection: HostConnection) -> dict[str, Any]:
        host = connection.target
        if self.job is not None:
            job = {"job": self.job, "jobs_dir": host.jobs_dir, "host": host.name}
            return {**job, "workdir": None if self.without else host.workdir, "without": self.without}
        paths = [each._asdict() for each in self.paths]
        return {"workdir": host.workdir, "group": host.workdir_group, "paths": paths}


class SurveyedPart(TypedDict):
    """One part; with a `problem` there is nothing of it, and if it is `absent`, it is not there."""

    files: Count  # and links
    links: Count
    bytes: Size
    others: Count  # pipes, devices, and what cannot be read
    later: Count  # files that were written only after the job's end
    digest: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]  # the same on hosts that see the same files
    problem: Short | None
    absent: bool


class _Survey(TypedDict):
    parts: list[SurveyedPart]


def survey(connection: HostConnection, wanted: Wanted) -> list[SurveyedPart]:
    """How much a host has of each part. Raises HostError (phase `command`) if it has no such job."""
    host = connection.target.name

    def refuse(frame: dict[str, Any]) -> None:
        raise wrong_answer(host, "survey: a frame that is no answer")

    args = {"action": "survey", **wanted.args(connection)}
    answer = run_program(
        connection, "fetch.fetch", args, timeout=_LOOK_SECONDS, on_frame=refuse, bound=wanted.bound
    )
    return _all(host, shaped(host, granted(host, answer), _Survey)["parts"], wanted)


class Entry(NamedTuple):
    """A file on a host. Its path is the host's word: it may lead anywhere."""

    part: Count
    path: _NAME  # relative to the part's top; "": the top itself is the file
    kind: Literal["file", "link", "pipe", "socket", "device", "unreadable"]
    size: Size
    mtime: _INT64  # ns
    mode: Annotated[int, Meta(ge=0, le=0o7777)]
    target: _NAME | None  # of a link


class _Entries(TypedDict):
    entries: list[Entry]


class _Listed(TypedDict):
    tops: list[_NAME]


def list_files(connection: HostConnection, wanted: Wanted) -> tuple[list[Entry], list[str]]:
    """The entries of all parts, and the top of each part on the host, for `receive`.

    Raises HostError: phase `command` if there are too many files.
    """
    host = connection.target.name
    found: list[Entry] = []
    size = 0

    def take(frame: dict[str, Any]) -> None:
        nonlocal size
        entries = shaped(host, frame, _Entries, "list")["entries"]
        if not entries:
            raise wrong_answer(host, "list: a frame without entries")
        found.extend(entries)
        size += sum(held(entry.path) + held(entry.target) for entry in entries)
        if len(found) > FETCH_FILES or size > FETCH_LIST:
            raise wrong_answer(host, "list: more files than a host may list")

    args = {"action": "list", **wanted.args(connection)}
    answer = run_program(
        connection, "fetch.fetch", args, timeout=_LOOK_SECONDS, on_frame=take, bound=wanted.bound
    )
    tops = _all(host, shaped(host, granted(host, answer), _Listed)["tops"], wanted)
    if any(entry.part >= len(tops) for entry in found):
        raise wrong_answer(host, "list: a file of no part")
    return found, tops


def _all(host: str, parts: list[T], wanted: Wanted) -> list[T]:
    if len(parts) != wanted.parts:
        raise wrong_answer(host, f"{len(parts)} parts instead of {wanted.parts}")
    return parts


class Request(NamedTuple):
    """A file to send, without its first `offset` bytes if `digest` is their SHA-256 (hex)."""

    entry: Entry
    offset: int = 0
    digest: str = ""


class Receiver(Protocol):
    """Takes the files of `receive`, in the order of the requests."""

    def piece(self, request: Request, at: int, data: bytes) -> None:
        """The next bytes of a file, which begin at byte `at`: 0 or the offset for the first ones."""

    def end(self, request: Request, changed: bool) -> None:
        """The file is complete; `changed`: it was written to while it was read."""

    def problem(self, request: Request, problem: str, *, gone: bool) -> None:
        """The host cannot send the file, or the rest of it; `gone`: it was removed there meanwhile."""


class _Piece(TypedDict):
    file: Count
    at: Size
    data: str
    end: bool


class _End(TypedDict, total=False):
    changed: bool


class _Problem(TypedDict):
    file: Count
    problem: Short
    gone: bool


def receive(
    connection: HostConnection, tops: Sequence[str], requests: Sequence[Request], receiver: Receiver
) -> None:
    """Receive files of a host. What `receiver` raises ends it.

    Sends a line for each file: `[part, path, size, mtime, offset, digest]`, and gets frames for each in this
    order: `{"file", "at", "data": base64, "end"}`, the last one with `changed`, or one
    `{"file", "problem", "gone"}`.

    Raises HostError: phase `answer` if the host sends anything else, so never more than the sizes it listed.
    """
    host = connection.target.name
    waiting = iter(enumerate(requests))
    open_file: tuple[int, Request, int] | None = None  # number, request, next byte

    def take(frame: dict[str, Any]) -> None:
        nonlocal open_file
        number, request, at = open_file or (*next(waiting, (-1, Request(_NO_ENTRY))), -1)
        if frame.get("file") != number:
            raise wrong_answer(host, "a file that is not the next one")
        if "problem" in frame:
            open_file = None
            said = shaped(host, frame, _Problem, "file")
            receiver.problem(request, said["problem"], gone=said["gone"])
            return
        piece = shaped(host, frame, _Piece, "file")
        try:
            data = binascii.a2b_base64(piece["data"])
        except (binascii.Error, ValueError):
            raise wrong_answer(host, "a piece of a file that is no base64") from None
        begins = (0, request.offset) if at < 0 else (at,)
        end, size = piece["at"] + len(data), request.entry.size
        fits = piece["at"] in begins and end <= size and piece["end"] == (end == size)
        if not fits or not (data or piece["end"]):
            raise wrong_answer(host, "a piece of a file that does not fit")
        receiver.piece(request, piece["at"], data)
        open_file = None if piece["end"] else (number, request, end)
        if piece["end"]:
            receiver.end(request, shaped(host, frame, _End, "file").get("changed", False))

    def lines() -> Iterator[bytes]:
        for request in requests:
            entry = request.entry
            row = [entry.part, entry.path, entry.size, entry.mtime, request.offset, request.digest]
            yield json.dumps(row).encode() + b"\n"

    args = {"action": "send", "tops": list(tops)}
    granted(
        host,
        run_program(connection, "fetch.fetch", args, stdin=lines(), timeout=None, on_frame=take),
    )
    if open_file is not None or next(waiting, None) is not None:
        raise wrong_answer(host, "it has not sent all files")


_NO_ENTRY = Entry(0, "", "file", 0, 0, 0, None)
