"""Check the answers of hosts, which are untrusted data, against the types that the tasks promise."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypedDict, TypeVar

from msgspec import Meta

from mnt import typed
from mnt.errors import HostError
from mnt.remote.common.forms import ADDRESS, CALENDAR_END, HOST, HOST_NAME, JOB_NAME, LONGEST_PATH, MOST_PID

T = TypeVar("T")

# What the numbers and texts of a host may be. An integer has at most 40 digits (mnt.remote.common.files).
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Pid = Annotated[int, Meta(ge=0, le=MOST_PID)]  # 0: a parent outside of a container
Port = Annotated[int, Meta(ge=1, le=65535)]
Moment = Annotated[float, Meta(ge=0, lt=CALENDAR_END)]  # epoch seconds
Duration = Annotated[float, Meta(gt=-1e10, lt=1e10)]  # seconds; negative if a clock was set
Rate = Annotated[float, Meta(ge=0, lt=1e10)]
ExitCode = Annotated[int, Meta(ge=0, le=255)]
Short = Annotated[str, Meta(max_length=1024)]  # a name, a version, ..
Long = Annotated[str, Meta(max_length=65536)]  # a message, a traceback
PathText = Annotated[str, Meta(max_length=LONGEST_PATH, pattern=r"\A[^\x00]*\Z")]  # of a file, on the host
Address = Annotated[str, Meta(pattern=ADDRESS)]  # numeric
# Linux refuses `/`, `:` and white space in the name of an interface (dev_valid_name), and we what acts on a
# terminal. An RDMA device is named alike.
_ACTS = r"\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
DeviceName = Annotated[str, Meta(pattern=rf"\A[^\s/:{_ACTS}]{{1,127}}\Z")]
HostName = Annotated[str, Meta(pattern=HOST_NAME)]
JobName = Annotated[str, Meta(pattern=JOB_NAME)]
UserName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.@+\\-]{0,254}\$?\Z")]  # one plain word


_CHECK = "check what replaces Python, /proc or mnt's files on that host"
_OF_ANOTHER = re.compile(rf";(\s*{HOST}:)")
_SHOWN = 200  # characters of a wrong place, and of what is wrong there


def shaped(host: str, value: object, shape: type[T], what: str = "answer") -> T:
    """An answer as the type `shape`, such as a TypedDict, without the keys that this type does not have.

    Raises HostError, phase `answer`.
    """
    try:
        answer: T = converted(value, shape)
        return answer
    except typed.Misfit as misfit:
        raise wrong_answer(host, described((what, *misfit.location), misfit)) from None


def parsed(host: str, document: Mapping[str, Any], shape: type[T], program: str) -> T:
    """The whole answer of a program, as facts. Raises HostError (phase `answer`) if it is not valid."""
    try:
        facts: T = converted(document, shape)
        return facts
    except typed.Misfit as misfit:
        problem = described(misfit.location, misfit, f"the {program}'s {{}} is not valid: {{}}")
        raise wrong_answer(host, problem) from None


def converted(value: object, shape: Any) -> Any:
    """What a host sent, as a `shape`: types, ranges and texts are checked. Raises Misfit."""
    typed.check_text(value)
    return typed.convert(value, shape)


def wrong_answer(host: str, problem: str) -> HostError:
    """The error of a host whose answer is not what a program of mnt sends."""
    return HostError(host, "answer", problem, fix=_CHECK)


def described(where: typed.Location, misfit: typed.Misfit, form: str = "{}: {}") -> str:
    """The place and the problem, cut: a host may have chosen their texts."""
    return form.format(typed.dotted(where)[:_SHOWN] or "answer", misfit.problem[:_SHOWN])


def complete(host: str, answers: dict[str, T], asked: Iterable[str], what: str) -> dict[str, T]:
    """The answers to what was asked, in that order. Raises HostError if there are others, or too few."""
    wanted = list(asked)
    if answers.keys() != set(wanted):
        raise wrong_answer(host, f"{what}: it does not answer what was asked")
    return {name: answers[name] for name in wanted}


class Refusal(TypedDict):
    """Why a program on a host refused, and how to fix it (mnt.remote.common.refusal)."""

    message: str
    fix: str | None


def granted(host: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer. If it is `{"refused": Refusal}`, raise that as a HostError, phase `command`."""
    if answer.get("refused") is not None:
        refusal = shaped(host, answer["refused"], Refusal, "refused")
        # Messages of several hosts may be joined: `node1: ..; node2: ..`.
        message = _OF_ANOTHER.sub(r",\1", refusal["message"])
        raise HostError(host, "command", message, fix=refusal["fix"], said=True)
    return answer
