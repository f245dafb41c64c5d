"""The files from which NCCL on a host takes settings, and what they say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ConfFile:
    """A configuration file of NCCL on a host, or its beginning."""

    path: str
    text: str


@dataclass(frozen=True)
class Setting:
    """A variable that a configuration file sets."""

    name: str
    value: str
    path: str
    line: int  # from 1


def settings(files: Iterable[ConfFile]) -> dict[str, Setting]:
    """By name, what the files set; of several the first file and the first line win.

    As NCCL 2.30 reads them: a line up to its first `=` is the name, blanks and all, the rest is the value; a
    line that begins with `#`, or has no `=`, says nothing.
    """
    found: dict[str, Setting] = {}
    for file in files:
        for number, line in enumerate(file.text.split("\n"), start=1):
            name, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                found.setdefault(name, Setting(name, value, file.path, number))
    return found


def effective(environment: Mapping[str, str], files: Iterable[ConfFile]) -> dict[str, str]:
    """What NCCL sees: the environment wins over the files."""
    return {**{name: setting.value for name, setting in settings(files).items()}, **environment}
