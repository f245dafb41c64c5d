"""What hosts answer is data of strangers: it has the shape that its TypedDict says, or it is refused."""

from __future__ import annotations

from typing import Any, TypedDict, TypeVar

from mnt import typed
from mnt.errors import HostError

T = TypeVar("T")


def shaped(host: str, value: object, shape: type[T], what: str = "answer") -> T:
    """`value` itself, which is of that shape: a TypedDict. Keys that the shape does not have are let through.

    Raises HostError, phase `answer`.
    """
    try:
        typed.convert(value, shape)
    except typed.Misfit as misfit:
        raise HostError(
            host,
            "answer",
            f"{typed.dotted((what, *misfit.location))}: {misfit.problem}",
            fix="look at what replaces Python or mnt's files on that host",
        ) from None
    return value  # type: ignore[return-value]


class Refusal(TypedDict):
    """Why a program on a host will not do what it was asked, and the way out (mnt.remote.common.refusal)."""

    message: str
    fix: str | None


def granted(host: str, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, unless it is `{"refused": Refusal}`. Raises HostError, phase `command`, with that."""
    if answer.get("refused") is not None:
        refusal = shaped(host, answer["refused"], Refusal, "refused")
        raise HostError(host, "command", refusal["message"], fix=refusal["fix"])
    return answer
