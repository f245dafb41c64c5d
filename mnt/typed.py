"""Convert data from outside to values of a declared type, by msgspec; errors have a location."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

# Keys and list indices from the root down to a value.
Location = tuple[str | int, ...]

# Code points that no text in Unicode has. Those from DC80 to DCFF stand for bytes that are not UTF-8
# (surrogateescape of PEP 383), and are not among these: file names may have them.
_NO_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")

# msgspec 0.22 crashes if two threads convert to a type for the first time, because it then reads the
# annotations of the class, in Python. Hooks may convert too.
_ONE_AT_A_TIME = threading.RLock()

_STEP = r"\.(\w+)|\[(\d+)\]|\[(\.\.\.)\]"


class Misfit(Exception):
    """A value that does not fit its type.

    Args:
        location: of the value; for a missing or unknown key, of its mapping.
        problem: what is wrong, in msgspec's words.
        of_key: the mapping's key is wrong, not the value.
        of_hook: `problem` is the ValueError of a hook or of a `__post_init__`.
    """

    def __init__(self, location: Location, problem: str, *, of_key: bool, of_hook: bool) -> None:
        super().__init__(problem)
        self.location = location
        self.problem = problem
        self.of_key = of_key
        self.of_hook = of_hook


def convert(value: Any, kind: Any, hook: Callable[[type, Any], Any] | None = None) -> Any:
    """Convert a plain value, as from JSON, to a `kind`: a class with annotated fields, `dict[str, int]`, ..

    Types are strict: text is no number, a bool is no int; but an int is accepted as a float. `hook(kind,
    value)` makes types that msgspec does not know, and may raise ValueError. Raises Misfit.
    """
    check = partial(_convert, type=kind, dec_hook=hook, str_keys=True)
    try:
        return check(value)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).rpartition(" - at `")
        raise Misfit(
            _locate(check, value, error),
            problem or path,  # the path of the root is not written
            of_key=path.startswith("key` in "),
            of_hook=error.__cause__ is not None,
        ) from None
    except UnicodeEncodeError:
        raise Misfit((), "a text is no Unicode", of_key=False, of_hook=False) from None


def _convert(value: Any, **options: Any) -> Any:
    with _ONE_AT_A_TIME:
        return msgspec.convert(value, **options)


def check_text(value: Any) -> None:
    """Raises Misfit if a text in a plain value, at any depth, is neither Unicode nor bytes of a file name."""
    waiting: list[tuple[Any, Any]] = [(value, ())]  # and the location: ((((), key), key), ..)
    while waiting:
        found, where = waiting.pop()
        if isinstance(found, str):
            if _broken(found):
                raise Misfit(_flat(where), "it is no Unicode text", of_key=False, of_hook=False)
        elif isinstance(found, dict):
            if any(_broken(key) for key in found):
                raise Misfit(_flat(where), "a key is no Unicode text", of_key=False, of_hook=False)
            waiting += [(item, (where, key)) for key, item in found.items()]
        elif isinstance(found, list):
            waiting += [(item, (where, index)) for index, item in enumerate(found)]


def _broken(text: str) -> bool:
    return not text.isascii() and _NO_BYTE.search(text) is not None


def _flat(where: Any) -> Location:
    location: list[str | int] = []
    while where:
        where, part = where
        location.append(part)
    return tuple(reversed(location))


def dotted(location: Location) -> str:
    """`storage[0].path`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")


def _locate(check: Callable[[Any], Any], root: Any, error: msgspec.ValidationError) -> Location:
    """The location of the error. msgspec writes `...` for a mapping's key, or leaves the key out."""
    _, _, path = str(error).rpartition(" - at `")
    steps = re.findall(_STEP, path.partition("$")[2])
    if path.startswith("key` in "):
        steps.append(("", "", "..."))
    location: Location = ()
    for name, index, key_left_out in steps:
        if key_left_out:
            table = _at(root, location)
            keys = list(table)
            while len(keys) > 1:
                half = keys[: len(keys) // 2]
                fails = _fails(check, _put(root, location, {key: table[key] for key in half}), error)
                keys = half if fails else keys[len(half) :]
            name = keys[0]
            root = _put(root, location, {name: table[name]})
        location += (int(index) if index else name,)
    return location


def _fails(check: Callable[[Any], Any], root: Any, error: msgspec.ValidationError) -> bool:
    try:
        check(root)
    except msgspec.ValidationError as other:
        return str(other) == str(error)
    return False


def _at(root: Any, location: Location) -> Any:
    for part in location:
        root = root[part]
    return root


def _put(root: Any, location: Location, value: Any) -> Any:
    """A copy of `root` with another value at `location`."""
    if not location:
        return value
    copy = root.copy()
    copy[location[0]] = _put(root[location[0]], location[1:], value)
    return copy
