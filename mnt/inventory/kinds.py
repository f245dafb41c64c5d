"""What the schema says about a place in a file: how to read the value there, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import inspect

from mnt.inventory import document
from mnt.inventory.document import describe
from mnt.inventory.schema import InventoryFile
from mnt.inventory.spelling import did_you_mean
from mnt.inventory.values import AS_WRITTEN, text, word
from mnt.typed import Location

Kind = inspect.Type

_MAPPINGS = (inspect.StructType, inspect.DictType)


def at(location: Location) -> Kind:
    """The kind of value at a place in a file; () is the whole file."""
    kind = inspect.type_info(InventoryFile)
    for part in location:
        kind = _child(kind, part)
    return kind


def plain(value: Any, kind: Kind) -> Any:
    """A document's value with scalars as the kind needs them: text as written, or text, numbers and None.

    A missing value becomes an empty mapping or list if the kind is one: an empty section has no effect.
    """
    if isinstance(value, dict):
        return {key: plain(each, _child(kind, key)) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each, _child(kind, index)) for index, each in enumerate(value)]
    options = _options(kind)
    if any(isinstance(option, inspect.Metadata) and AS_WRITTEN in (option.extra or {}) for option in options):
        return value.value
    if not document.is_null(value):
        return document.scalar(value)
    if any(isinstance(option, _MAPPINGS) for option in options):
        return {}
    return [] if any(isinstance(option, inspect.VarTupleType) for option in options) else None


def keys(kind: Kind) -> dict[str, bool]:
    """The keys of a section, and whether each is required; none if the kind is no section."""
    sections = [option for option in _options(kind) if isinstance(option, inspect.StructType)]
    return {field.name: field.required for section in sections for field in section.fields}


def key_problem(key: str, kind: Kind) -> str:
    """What is wrong with a key of a mapping of that kind."""
    (mapping,) = (option for option in _options(kind) if isinstance(option, inspect.DictType))
    return problem(key, mapping.key_type)


def problem(value: Any, kind: Kind) -> str:
    """What is wrong with a value that is not of that kind."""
    wanted: list[str] = []
    words: list[str] = []
    for option in _options(kind):
        match option:
            case inspect.StrType():
                return _text_problem(value, None)
            case inspect.Metadata(type=inspect.StrType()):
                return _text_problem(value, (option.extra_json_schema or {}).get("description"))
            case inspect.LiteralType():
                words += map(str, option.values)
            case inspect.IntType():
                is_number = isinstance(value, int)
                wanted.append(f"a number from {option.ge} to {option.le}" if is_number else "a whole number")
            case inspect.StructType() | inspect.DictType():
                wanted.append("a mapping")
            case inspect.VarTupleType():
                wanted.append("a list")
    *others, last = words + wanted
    expected = f"{', '.join(others)} or {last}" if others else last
    return f"expected {expected}, got {describe(value)}{did_you_mean(document.written(value), words)}"


def _text_problem(value: Any, description: str | None) -> str:
    try:
        text(value) if description else word(value)
    except ValueError as error:
        return str(error)
    return f"{value!r} is not {description}"


def _options(kind: Kind) -> Sequence[Kind]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _child(kind: Kind, part: str | int) -> Kind:
    """The kind of value at a key of a mapping, or at an index of a list."""
    for option in _options(kind):
        match option:
            case inspect.StructType():
                for field in option.fields:
                    if field.name == part:
                        return field.type
            case inspect.DictType() if isinstance(part, str):
                return option.value_type
            case inspect.VarTupleType() if isinstance(part, int):
                return option.item_type
    return inspect.AnyType()
