"""Gather a program of `mnt/remote/` and the modules there that it imports.

A host gets a single standard-library program, whatever the number of files it is written in here.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import resources

_PACKAGE = "mnt.remote"

_LOADER = """\
import sys, types

def _load(name, source):
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(source, name.replace(".", "/") + ".py", "exec"), module.__dict__)

"""


@cache
def script_source(name: str) -> str:
    """`mnt/remote/<name>.py` as a script that needs no `mnt`: exits with what `main(arguments)` returns."""
    loads = [f"_load({full_name!r}, {source!r})\n" for full_name, source in program_modules(name)]
    run = f"sys.exit(sys.modules[{f'{_PACKAGE}.{name}'!r}].main(sys.argv[1:]))\n"
    return "".join([_LOADER, *loads, run])


def program_modules(name: str) -> list[tuple[str, str]]:
    """A program's modules as (full name, source), each after those that it imports; its own comes last."""
    return [(f"{_PACKAGE}.{part}", _read(part)) for part in _parts(name)]


def _parts(name: str) -> list[str]:
    """`name` after everything that it imports, directly or not, each once."""
    order: list[str] = []

    def visit(part: str) -> None:
        for imported in _imports(_read(part)):
            if imported not in order:
                visit(imported)
        order.append(part)

    visit(name)
    return order


def _imports(source: str) -> list[str]:
    """The modules of `mnt.remote` that a source imports, by `from mnt.remote[.x] import y`."""
    found: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module == _PACKAGE:
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGE + "."):
            found.append((node.module or "")[len(_PACKAGE) + 1 :])
    return found


def _read(name: str) -> str:
    return resources.files(_PACKAGE).joinpath(f"{name}.py").read_text(encoding="utf-8")
