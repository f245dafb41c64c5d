"""Check the answers of hosts, which are untrusted data, against the types that the tasks promise."""

from __future__ import annotations

from typing import Any, TypedDict, TypeVar

from mnt import typed
from mnt.errors import HostError

T = TypeVar("T")


def shaped(host: str, value: object, shape: type[T], what: str = "answer") -> T:
    """Return `value` if it has the type `shape`, such as a TypedDict; additional keys are accepted.

    Raises HostError, phase `answer`.
    """
    try:
        typed.convert(value, shape)
    except typed.Misfit as misfit:
        raise HostError(
            host,
            "answer",
            f"{typed.dotted((what, *misfit.location))}: {misfit.problem}",
            fix="check what replaces Python or mnt's files on that host",
        ) from None
    return value  # type: ignore[return-value]


class Refusal(TypedDict):
    """Why a program on a host refused, and how to fix it (mnt.remote.common.refusal)."""

    message: str
    fix: str | None


def granted(host: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer. If it is `{"refused": Refusal}`, raise that as a HostError, phase `command`."""
    if answer.get("refused") is not None:
        refusal = shaped(host, answer["refused"], Refusal, "refused")
        raise HostError(host, "command", refusal["message"], fix=refusal["fix"])
    return answer
