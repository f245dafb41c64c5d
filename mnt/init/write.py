"""A draft as the text of an inventory file, new or added to an existing one. Pure.

What is in a file stays, with its comments and its order: only keys that it lacks are added. ruamel.yaml may
change blanks.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.anchor import Anchor
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from mnt.errors import InventoryError
from mnt.init.draft import Draft, HostEntry, Setting
from mnt.inventory import hostlist

_TITLE = "The hosts of this cluster, as `mnt init` found them. Every key: docs/inventory.md"
_NOT_KNOWN = "not known: "  # the beginning of the comment at a host that did not answer
_RESOLVER: Any = yaml.resolver.Resolver()  # what PyYAML takes a text for
# Never more than a scalar to a parser of YAML, in `{}` and `[]` either.
_BARE = re.compile(r"[A-Za-z0-9/~_][A-Za-z0-9/~_.:@+-]*(?<!:)")
# (mapping, sequence, offset of the dash): the layouts that people and editors write
_LAYOUTS = ((2, 2, 0), (2, 4, 2), (4, 4, 0), (4, 4, 2), (4, 6, 4))
_BEGINNINGS = (200, 100, 50)  # lines: the first number at which a longer file can be cut shows its layout
_MOST_SHOWN = 8192  # characters of them
_TAGS = "tag:yaml.org,2002:"
BY_HAND = "add what it lacks by hand, or write another file: mnt init -o FILE"


@dataclass
class Written:
    """The text of the file. `kept`: where the file says something else than was found, which stays."""

    text: str
    kept: list[str] = field(default_factory=list)


def render(draft: Draft, login: Mapping[str, Any], existing: str | None = None) -> Written:
    """The inventory file.

    Args:
        login: for its `ssh` section.
        existing: the text of a valid inventory, to which the draft is added; None: there is no file.
    """
    layout = _layout(existing or "")
    document: CommentedMap = (layout.load(existing) if existing else None) or CommentedMap()
    if not document:
        document.yaml_set_start_comment(_TITLE)
    written = Written("")
    settings = [Setting(("ssh", key), value) for key, value in login.items()]
    settings += draft.settings
    above = [setting for setting in settings if setting.key[0] in ("ssh", "defaults")]
    for setting in above:
        _add(document, setting, written)
    _add_hosts(document, draft.hosts, written)
    for setting in settings:
        if setting not in above:
            _add(document, setting, written)
    stream = io.StringIO()
    layout.dump(document, stream)
    written.text = stream.getvalue()
    return written


def check(file: str, text: str) -> None:
    """Raises InventoryError, with the line, for a valid inventory that `render` cannot complete."""
    for event in yaml.parse(text, Loader=yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):
        tag = getattr(event, "tag", None)
        if tag is not None:
            message = f"mnt init completes no file with tags: {_comment(tag)}"
            line = event.start_mark.line + 1 if event.start_mark else None
            raise InventoryError(message, file=file, line=line, fix="remove the tag")
    try:
        _yaml(*_LAYOUTS[0]).load(text)
    except YAMLError as error:
        mark = isinstance(error, MarkedYAMLError) and (error.problem_mark or error.context_mark)
        problem = isinstance(error, MarkedYAMLError) and error.problem
        message = f"mnt init cannot complete it: {problem or 'YAML 1.2 does not allow what is there'}"
        raise InventoryError(message, file=file, line=mark.line + 1 if mark else None, fix=BY_HAND) from None


class _AsWritten(VersionedResolver):
    """Words without quotes stay texts: `010` is no number, which would be written anew, and no other key."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        tag = super().resolve(kind, value, implicit)
        keeps = kind is not ScalarNode or str(tag) in (f"{_TAGS}null", f"{_TAGS}merge")
        return tag if keeps else self.DEFAULT_SCALAR_TAG


def _yaml(mapping: int, sequence: int, offset: int) -> YAML:
    """A reader and writer with this layout."""
    yaml_ = YAML()
    yaml_.Resolver = _AsWritten
    yaml_.width, yaml_.preserve_quotes = 1 << 20, True
    yaml_.indent(mapping=mapping, sequence=sequence, offset=offset)
    return yaml_


def _layout(text: str) -> YAML:
    """A reader and writer that changes the layout of the text as little as possible, by its first lines."""
    best: tuple[int, YAML] | None = None
    text = _beginning(text)
    for layout in _LAYOUTS:
        yaml_ = _yaml(*layout)
        stream = io.StringIO()
        if text:
            yaml_.dump(yaml_.load(text), stream)
        before, after = text.splitlines(), stream.getvalue().splitlines()
        alike = sum(map(str.__eq__, before, after))
        if best is None or alike > best[0]:
            best = alike, yaml_
        if before == after:
            break
    assert best is not None  # noqa: S101 - there are layouts
    return best[1]


def _beginning(text: str) -> str:
    """The whole text, or as many of its first lines as can be read without the others; "" if none can."""
    lines = text.splitlines(keepends=True)
    for count in _BEGINNINGS:
        beginning = "".join(lines[:count])
        if len(beginning) <= _MOST_SHOWN:
            with contextlib.suppress(YAMLError):
                _yaml(*_LAYOUTS[0]).load(beginning)
                return beginning
    return ""


def _add(document: CommentedMap, setting: Setting, written: Written) -> None:
    """Set a key, unless the file has it."""
    section, *below = setting.key
    place = document
    if below:
        place = document.get(section)
        if place is None:
            place = document[section] = CommentedMap()
            _blank_line(document, section)
    key = setting.key[-1]
    if place.get(key) is None:
        if below:
            place = _own(document, section)
        place[key] = _value(setting.value)
        if not below:
            _blank_line(document, section, _comment(setting.reason))
        elif setting.reason:
            place.yaml_set_comment_before_after_key(key, before=_comment(setting.reason), indent=2)
    elif _plain(place[key]) != _plain(setting.value):
        written.kept.append(
            f"{'.'.join(setting.key)} is {_plain(place[key])}, found: {_plain(setting.value)}"
        )


def _own(above: CommentedMap, key: str) -> Any:
    """The value of a key, to add something: one with an anchor, which an alias repeats, is copied first."""
    value = above[key]
    if value.yaml_anchor() is None:
        return value
    own = value.copy() if isinstance(value, CommentedMap) else CommentedSeq(value)
    value.copy_attributes(own)
    delattr(own, Anchor.attrib)
    above[key] = own
    return own


def _blank_line(document: CommentedMap, section: str, comment: str = "") -> None:
    if len(document) > 1:
        document.yaml_set_comment_before_after_key(section, before=f"\n{comment}")


def _add_hosts(document: CommentedMap, entries: Sequence[HostEntry], written: Written) -> None:
    """Add the hosts that the file lacks, and what it lacks of those that have a key of their own."""
    hosts = document.get("hosts")
    if hosts is None:
        hosts = document["hosts"] = CommentedMap()
        _blank_line(document, "hosts")
    known = set(_named(hosts))
    if any(entry.name not in known for entry in entries):
        hosts = _own(document, "hosts")
    for entry in entries:
        if isinstance(hosts, CommentedSeq):
            if entry.name not in known:
                hosts.append(_text(entry.name))
        elif entry.name in hosts:
            _complete(hosts, entry, written)
        elif entry.name not in known:
            _append(hosts, entry)


def _named(hosts: CommentedMap | CommentedSeq) -> Iterator[str]:
    for text in hosts:
        yield from hostlist.names(str(text))


def _complete(hosts: CommentedMap, entry: HostEntry, written: Written) -> None:
    """Add what a host's own key lacks."""
    if hosts[entry.name] is None:
        hosts[entry.name] = _flow(entry.settings)
    else:
        for key, value in entry.settings.items():
            if hosts[entry.name].get(key) is None:
                _own(hosts, entry.name)[key] = _value(value)
            elif (there := _plain(hosts[entry.name][key])) != _plain(value):
                written.kept.append(f"hosts.{entry.name}.{key} is {there}, found: {_plain(value)}")
    token = _comment_at(hosts, entry.name)
    if token is not None and token.value.startswith(f"# {_NOT_KNOWN}"):
        token.value = f"# {_remark(entry)}\n" + token.value.partition("\n")[2]


def _append(hosts: CommentedMap, entry: HostEntry) -> None:
    """Add a host with its comment; what stands between the last host and the next section stays there."""
    last = _comment_at(hosts, next(reversed(hosts), ""))
    own, newline, below = last.value.partition("\n") if last is not None else ("", "", "")
    hosts[_text(entry.name)] = _flow(entry.settings)
    hosts.yaml_add_eol_comment(_remark(entry) or " ", entry.name)
    if last is not None:
        last.value = own + newline
        _comment_at(hosts, entry.name).value += f"\n{below}"


def _remark(entry: HostEntry) -> str:
    return _comment(entry.note if entry.problem is None else _NOT_KNOWN + entry.problem)


def _comment_at(hosts: CommentedMap, name: str) -> Any:
    """The token of the comment at a host's line, with the lines below it; None: there is none."""
    _, _, token, *_ = hosts.ca.items.get(name) or [None, None, None]
    return token


def _flow(settings: Mapping[str, Any]) -> CommentedMap | None:
    """Settings as `{address: .., nic: ..}`; None, which is written as nothing, if there are none."""
    if not settings:
        return None
    mapping = CommentedMap({key: _value(value) for key, value in settings.items()})
    mapping.fa.set_flow_style()
    return mapping


def _value(value: Any) -> Any:
    """A value as ruamel.yaml writes it: texts so that every reader of YAML takes them as texts."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return CommentedMap({key: _value(each) for key, each in value.items()})
    if isinstance(value, (list, tuple)):
        sequence = CommentedSeq(_flow(each) if isinstance(each, Mapping) else _value(each) for each in value)
        if not any(isinstance(each, Mapping) for each in value):
            sequence.fa.set_flow_style()
        return sequence
    return value if value is None else str(value).lower()  # a number, or true


def _text(text: str) -> str:
    """A text, in quotes if PyYAML (YAML 1.1) takes it for something else: `no`, `0123`, `1:30`."""
    is_text = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False)) == _RESOLVER.DEFAULT_SCALAR_TAG
    return text if is_text and _BARE.fullmatch(text) else DoubleQuotedScalarString(text)


def _plain(value: Any) -> Any:
    """A value without ruamel.yaml's types, to compare and to show."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if value is None else str(value)


def _comment(text: str) -> str:
    """A text of any origin as one line of a comment."""
    return "".join(character for character in text if character.isprintable())[:200]
