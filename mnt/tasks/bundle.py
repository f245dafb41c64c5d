"""Collect a program of `mnt/remote/` and the modules there that it imports, to send it as one file."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import cache, wraps
from importlib import resources
from importlib.abc import Traversable
from typing import TypeVar

from mnt.tasks import bootstrap

T = TypeVar("T")

_PACKAGE = "mnt.remote"
_IMPORT = re.compile(rf"^from {_PACKAGE}\.([\w.]+) import (\([^)]*\)|.+)", re.MULTILINE)

_reading = threading.Lock()


def _once(read: Callable[[str], T]) -> Callable[[str], T]:
    """Read a program once for all hosts; the threads of the other hosts wait for the first."""
    cached = cache(read)

    @wraps(read)
    def locked(name: str) -> T:
        with _reading:
            return cached(name)

    return locked


@_once
def script_source(name: str) -> str:
    """The program as a script that does not need `mnt`; its exit code is what `main(arguments)` returns."""
    load = f"_load({program_modules(name)!r})\n"
    run = f"sys.exit(sys.modules[{f'{_PACKAGE}.{name}'!r}].main(sys.argv[1:]))\n"
    return _read("boot.boot") + load + run  # boot.py for its `_load`


@_once
def packed(name: str) -> bytes:
    """The program as it is sent to every host: see `bootstrap.pack`."""
    return bootstrap.pack(program_modules(name))


def program_modules(name: str) -> list[tuple[str, str]]:
    """A program's modules as (full name, source), each after those that it imports; its own comes last."""
    return [(f"{_PACKAGE}.{part}", _read(part)) for part in _parts(name)]


def _parts(name: str) -> list[str]:
    """`name`, after all modules that it imports directly or indirectly, each once."""
    order: list[str] = []

    def visit(part: str) -> None:
        for imported in _imports(_read(part)):
            if imported not in order:
                visit(imported)
        order.append(part)

    visit(name)
    return order


def _imports(source: str) -> list[str]:
    """The modules that a source imports with `from mnt.remote.x[.y] import z`, as `x.y`."""
    found: list[str] = []
    for place, names in _IMPORT.findall(source):
        whole = _file(place).is_file()
        found += [place] if whole else [f"{place}.{name}" for name in re.findall(r"\w+", names)]
    return found


@cache
def _read(name: str) -> str:
    return _file(name).read_text(encoding="utf-8")


def _file(name: str) -> Traversable:
    """`job.supervisor` is mnt/remote/job/supervisor.py."""
    return resources.files(_PACKAGE).joinpath(f"{name.replace('.', '/')}.py")
