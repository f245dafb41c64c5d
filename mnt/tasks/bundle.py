"""Make one text of a program of `mnt/remote/` and of the modules there that it imports.

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
def program_source(name: str) -> str:
    """The source of `mnt/remote/<name>.py`, complete: it defines `main` and imports nothing of `mnt`.

    The program's own module comes last; run as a script it behaves as the module does under `__main__`.
    """
    parts = _parts(name)
    if len(parts) == 1:
        return _read(name)
    loads = [f"_load({f'{_PACKAGE}.{part}'!r}, {_read(part)!r})\n" for part in parts]
    return _LOADER + "".join(loads) + f"main = sys.modules[{f'{_PACKAGE}.{name}'!r}].main\n"


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
    """The modules of `mnt.remote` that a source imports: `from mnt.remote import x`, `from mnt.remote.x import y`."""
    found: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module == _PACKAGE:
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGE + "."):
            found.append((node.module or "")[len(_PACKAGE) + 1 :])
    return found


def _read(name: str) -> str:
    return resources.files(_PACKAGE).joinpath(f"{name}.py").read_text(encoding="utf-8")
