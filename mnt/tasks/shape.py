"""What hosts answer is data of strangers: it has the shape that its TypedDict says, or it is refused."""

from __future__ import annotations

import types
from collections.abc import Iterator
from functools import cache
from typing import Any, TypedDict, TypeVar, Union, get_args, get_origin, get_type_hints

from mnt.errors import HostError

T = TypeVar("T")


def shaped(host: str, value: object, shape: type[T], what: str = "answer") -> T:
    """`value`, which is of that shape: a TypedDict, made of those, str, int, float, bool, None, list, dict.

    Keys that the shape does not have are let through. Raises HostError, phase `answer`.
    """
    if (problem := misshaped(value, shape, what)) is not None:
        raise HostError(
            host, "answer", problem, fix="look at what replaces Python or mnt's files on that host"
        )
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


def misshaped(value: object, shape: Any, place: str) -> str | None:
    """What is wrong with a value, and where in it; None if nothing is."""
    if get_origin(shape) in (Union, types.UnionType):
        problems = [misshaped(value, option, place) for option in get_args(shape)]
        return None if None in problems else problems[0]
    if _is_plain(shape):
        return None if _fits(value, shape) else f"{place}: not {_named(shape)}"
    if get_origin(shape) is list:
        (item,) = get_args(shape)
        if not isinstance(value, list):
            return f"{place}: not a list"
        return _first(misshaped(each, item, f"{place}[{index}]") for index, each in enumerate(value))
    if not isinstance(value, dict):
        return f"{place}: not an object"
    if get_origin(shape) is dict:
        _, item = get_args(shape)
        return _first(misshaped(each, item, f"{place}.{key}") for key, each in value.items())
    missing = shape.__required_keys__ - set(value)
    if missing:
        return f"{place}: without {min(missing)}"
    fields = {key: hint for key, hint in _hints(shape).items() if key in value}
    return _first(misshaped(value[key], hint, f"{place}.{key}") for key, hint in fields.items())


def _is_plain(shape: Any) -> bool:
    return shape in (Any, None, types.NoneType, str, int, float, bool)


def _fits(value: object, shape: Any) -> bool:
    if shape is Any:
        return True
    if shape in (None, types.NoneType):
        return value is None
    if isinstance(value, bool):
        return shape is bool
    return isinstance(value, (int, float) if shape is float else shape)


def _named(shape: Any) -> str:
    return "null" if shape in (None, types.NoneType) else str(shape.__name__)


def _first(problems: Iterator[str | None]) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


@cache
def _hints(shape: type) -> dict[str, Any]:
    return get_type_hints(shape)
