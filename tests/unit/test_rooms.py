"""The house as its imports draw it: rooms stand on floors, and import only what is below them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import mnt

HOUSE = Path(mnt.__file__).parent
# From the top. A new room has its place here, and in the table of docs/architecture.md.
FLOORS = (
    ("cli",),
    ("trial",),
    ("init", "launch", "setup"),
    ("fetch", "preflight", "push", "run", "trust"),
    ("network",),
    ("facts",),
    ("tasks",),
    ("fleet",),
    ("inventory",),
    ("lab", "ui"),
    ("remote", "typed", "keys", "paths", "errors"),
)
FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor}


def module_of(path: Path) -> str:
    name = ".".join(path.relative_to(HOUSE.parent).with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {module_of(path): path for path in sorted(HOUSE.rglob("*.py"))}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of the house that a module imports, wherever in it, for types too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{module} has a relative import: this test does not follow those"
            parts = (f"{node.module}.{alias.name}" for alias in node.names)
            names = [part if part in MODULES else node.module for part in parts]
        found.update(name for name in names if name in MODULES and name not in ("mnt", module))
    return frozenset(found)


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(module) for module in MODULES} - {"mnt", "__main__"}
    assert rooms == FLOOR.keys()


def test_rooms_import_only_what_is_below_them() -> None:
    upward = [
        f"{module} imports {imported}"
        for module in MODULES
        for imported in imports(module)
        if room_of(module) in FLOOR
        and room_of(imported) != room_of(module)
        and FLOOR[room_of(imported)] <= FLOOR[room_of(module)]
    ]
    assert upward == []


def test_no_circle_of_modules() -> None:
    found = set().union(*map(frozenset, circles({module: set(imports(module)) for module in MODULES})))
    assert found == set()


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The modules in circles, and between two: each that is left imports another that is, and is imported."""
    left = dict(arrows)
    while True:
        imported = set().union(*left.values()) if left else set()
        free = [
            module for module, targets in left.items() if not targets & left.keys() or module not in imported
        ]
        if not free:
            return [[*left]] if left else []
        for module in free:
            del left[module]


@pytest.mark.parametrize(
    ("arrows", "found"), [({"a": {"b"}, "b": set()}, []), ({"a": {"b"}, "b": {"a"}}, [["a", "b"]])]
)
def test_a_circle_would_be_found(arrows: dict[str, set[str]], found: list[list[str]]) -> None:
    assert circles(arrows) == found


def test_programs_on_hosts_import_nothing_of_the_head() -> None:
    above = [
        f"{module} imports {imported}"
        for module in MODULES
        if room_of(module) == "remote"
        for imported in imports(module)
        if room_of(imported) != "remote"
    ]
    assert above == []


def test_only_ui_prints() -> None:
    """Text of hosts reaches the terminal through `mnt.ui` only. Tasks for `fab` print JSON."""
    elsewhere = [
        f"{module}:{node.lineno}"
        for module, path in MODULES.items()
        if room_of(module) not in ("ui", "remote") and module != "mnt.tasks.by_hand"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in PRINTS
    ]
    assert elsewhere == []


PRINTS = (
    "print",
    "click.echo",
    "click.secho",
    "sys.stdout.write",
    "sys.stderr.write",
    "sys.stdout.buffer.write",
    "warnings.warn",
)
