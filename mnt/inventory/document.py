"""A YAML file as plain values, with the line of each.

PyYAML's own loading silently keeps the last of two equal keys, and turns `0123` into 83. So the file is only
composed here: mappings and lists become dicts and lists, and each scalar stays a `yaml.ScalarNode` with its
source text, which `mnt.inventory.kinds` reads.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from mnt.errors import InventoryError
from mnt.remote.common.files import read_bytes, strerror
from mnt.typed import Location

_TAGS = "tag:yaml.org,2002:"
_TOO_DEEP, _FEW_LEVELS = "nested too deeply", "an inventory has a few levels"
_DEEPEST = 32  # levels
_MOST = 200_000  # values, with those of aliases and merges; an inventory of 1,000 hosts has some 10,000
_MOST_BRACKETS = 100_000  # of hostlists and lists
_MOST_TEXT = 16 * 1024 * 1024  # characters of all values, with those of aliases
MOST_BYTES = 8 * 1024 * 1024  # of a file
_BETTER_MESSAGES = 128 * 1024  # characters that PyYAML's own parser reads in about a second
_DIRECTIVE = re.compile("(?:\\A|[\r\n\x85\u2028\u2029])\ufeff?%")  # what YAML takes for the start of a line
_MOST_DIRECTIVES = 16  # libyaml compares each with all before it; an inventory needs none
_SPLIT = "split it into several inventories"
_NO_TABS = "indent with blanks: YAML allows no tabs there"
_QUOTE = 'quote text with special characters of YAML: "node[1-4]", "@group", ">=2.6"'


@dataclass(frozen=True)
class Document:
    """`root` consists of dicts (whose keys are source text), lists and `yaml.ScalarNode`s."""

    file: str
    root: Any
    lines: Mapping[Location, int]  # from 1; the line of the key, or of the list's item

    def line(self, location: Location) -> int:
        """The line of `location`, or of the innermost part around it that is in the file."""
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location, 1)

    def error(self, location: Location, message: str, *, fix: str | None = None) -> InventoryError:
        return InventoryError(message, file=self.file, line=self.line(location), fix=fix)


def read(file: str, *, any_kind: bool = False) -> Document:
    """Read a YAML file.

    Args:
        any_kind: also from a pipe or a device, as for `read_bytes`.

    Raises:
        InventoryError: it cannot be read, is not YAML, is empty, or has a key twice.
    """
    text = _read_text(file, any_kind)
    _check_text(file, text)
    _check_events(file, text)
    try:
        root = _compose(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"the character {chr(error.character)!r} is not allowed in YAML"
        raise InventoryError(message, file=file, line=line, fix="remove it") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        fix = _NO_TABS if r"'\t'" in problem else _QUOTE
        raise InventoryError(
            f"not YAML: {problem}", file=file, line=mark.line + 1 if mark else None, fix=fix
        ) from None
    except RecursionError:
        raise InventoryError(_TOO_DEEP, file=file, fix=_FEW_LEVELS) from None
    if root is None:
        raise InventoryError("the file is empty", file=file, fix="inventories/template.yaml shows every key")
    lines: dict[Location, int] = {}
    return Document(file, _Converter(file, lines).convert(root, ()), lines)


def is_null(value: object) -> bool:
    """Whether it is nothing, `~` or `null`."""
    return isinstance(value, yaml.ScalarNode) and value.tag == _TAGS + "null"


def scalar(node: yaml.ScalarNode) -> str | int | yaml.ScalarNode:
    """The value, if it is text or a decimal number; anything else (`no`, 1.5, 0123) stays the node."""
    if node.tag == _TAGS + "str":
        text: str = node.value
        return text
    if node.tag == _TAGS + "int" and re.fullmatch(r"0|-?[1-9][0-9]{0,18}", node.value):
        return int(node.value)
    return node


def written(value: object) -> str:
    """A scalar as it is written in the file."""
    return str(value.value if isinstance(value, yaml.ScalarNode) else value)


def describe(value: object) -> str:
    """The value, for a message."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None or is_null(value):
        return "nothing"
    return str(value) if isinstance(value, int) else repr(written(value))


def _compose(text: str) -> yaml.Node | None:
    """Parse with libyaml, which is ten times faster; if it fails, with Python's, for better messages."""
    if yaml.__with_libyaml__:
        try:
            return yaml.compose(text, Loader=yaml.CSafeLoader)
        except yaml.YAMLError:
            if len(text) >= _BETTER_MESSAGES:
                raise
    return yaml.compose(text, Loader=yaml.SafeLoader)


def _check_text(file: str, text: str) -> None:
    """Refuse what takes libyaml quadratic time, in which it hears no signal: before it sees the text."""
    if text.count("[") > _MOST_BRACKETS:
        raise InventoryError(f"the file has more than {_MOST_BRACKETS} brackets", file=file, fix=_SPLIT)
    for directive in itertools.islice(_DIRECTIVE.finditer(text), _MOST_DIRECTIVES, None):
        message = f"more than {_MOST_DIRECTIVES} lines begin with %"
        line = text.count("\n", 0, directive.end()) + 1
        raise InventoryError(message, file=file, line=line, fix="remove them: no directive is needed")


def _check_events(file: str, text: str) -> None:
    """Refuse a text with too many values, or too deep ones, before memory and time are used for them.

    The time of libyaml grows with the levels around each value. Between two events, Ctrl-C is heard.
    """
    values = levels = 0
    with contextlib.suppress(yaml.YAMLError):  # _compose explains it
        for event in yaml.parse(text, Loader=yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):
            values += isinstance(event, yaml.NodeEvent)
            levels += isinstance(event, yaml.CollectionStartEvent)
            levels -= isinstance(event, yaml.CollectionEndEvent)
            line = event.start_mark.line + 1 if event.start_mark else None
            if levels > _DEEPEST:
                raise InventoryError(_TOO_DEEP, file=file, line=line, fix=_FEW_LEVELS)
            if values > 2 * _MOST:  # keys too
                message = f"the file has more than {_MOST} values"
                raise InventoryError(message, file=file, line=line, fix=_SPLIT)


def _read_text(file: str, any_kind: bool) -> str:
    try:
        data = read_bytes(file, MOST_BYTES, any_kind=any_kind)
    except (OSError, ValueError) as error:
        fix = "run `mnt inventory list` to see the inventories"
        raise InventoryError(f"cannot be read: {strerror(error)}", file=file, fix=fix) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InventoryError(
            f"not UTF-8: byte 0x{data[error.start]:02x}", file=file, line=line, fix="save it as UTF-8"
        ) from None


class _Converter:
    def __init__(self, file: str, lines: dict[Location, int]) -> None:
        self._file = file
        self._lines = lines
        self._open: list[yaml.Node] = []  # from the root to the current node
        self._count = 0  # of values
        self._text = 0  # characters in them
        self._line: int | None = None  # of the key of the root that is being converted

    def convert(self, node: yaml.Node, location: Location) -> Any:
        self._add(node)
        if not node.tag.startswith(_TAGS):
            raise self._error(node, f"the tag {node.tag!r} is not supported", fix="remove it")
        if isinstance(node, yaml.ScalarNode):
            self._check_text(node)
            return node
        if node in self._open:
            raise self._error(node, "an alias that contains itself", fix="remove the alias")
        with self._inside(node):
            if isinstance(node, yaml.MappingNode):
                pairs = self._pairs(node).items()
                return {key: self._child(at, value, (*location, key)) for key, (at, value) in pairs}
            return [self._child(item, item, (*location, i)) for i, item in enumerate(node.value)]

    @contextlib.contextmanager
    def _inside(self, node: yaml.Node) -> Iterator[None]:
        """While the values in a mapping or list are read. Raises InventoryError for too many levels."""
        if len(self._open) == _DEEPEST:
            raise self._error(node, _TOO_DEEP, fix=_FEW_LEVELS)
        self._open.append(node)
        try:
            yield
        finally:
            self._open.pop()

    def _child(self, at: yaml.Node, value: yaml.Node, location: Location) -> Any:
        self._lines[location] = at.start_mark.line + 1
        if len(location) == 1:
            self._line = self._lines[location]
        return self.convert(value, location)

    def _add(self, node: yaml.Node) -> None:
        """Count a value, each time that an alias or a merge repeats it."""
        self._count += 1
        self._text += len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        if self._count > _MOST or self._text > _MOST_TEXT:
            much = f"{_MOST} values" if self._count > _MOST else f"{_MOST_TEXT} characters"
            message = f"the file has more than {much}, with those of aliases"
            raise InventoryError(message, file=self._file, line=self._line, fix="remove aliases of aliases")

    def _pairs(self, node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """By key: the key's node and the value's; first the merged ones (`<<`) that are not overridden."""
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if key.tag == _TAGS + "merge":
                for source in self._merge_sources(value):
                    with self._inside(source):
                        for name, pair in self._pairs(source).items():
                            self._add(pair[0])
                            merged.setdefault(name, pair)
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, "a key must be plain text", fix=_QUOTE)
            self._check_text(key)
            if key.value in own:
                first = own[key.value][0].start_mark.line + 1
                message = f"the key {key.value!r} is here twice, first in line {first}"
                raise self._error(key, message, fix="keep one of them")
            own[key.value] = (key, value)
        return merged | own

    def _check_text(self, node: yaml.ScalarNode) -> None:
        """Refuse escapes such as `\\0` and `\\ud800`: the text cannot be passed to a program."""
        if re.search("[\0\ud800-\udfff]", node.value):
            problem = "the text contains a character that cannot be passed to a program"
            raise self._error(node, problem, fix="remove it")

    def _merge_sources(self, value: yaml.Node) -> list[yaml.MappingNode]:
        """The mappings in `<<: *one` or `<<: [*one, *other]`; the earlier one wins (YAML 1.1, merge)."""
        nodes = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for node in nodes:
            self._add(node)
            if not isinstance(node, yaml.MappingNode) or node in self._open:
                raise self._error(value, "`<<` needs the alias of another mapping", fix="<<: *name")
        return list(nodes)

    def _error(self, node: yaml.Node, message: str, *, fix: str) -> InventoryError:
        return InventoryError(message, file=self._file, line=node.start_mark.line + 1, fix=fix)
