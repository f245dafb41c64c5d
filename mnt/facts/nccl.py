"""NCCL's configuration files on a host, and the settings in them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mnt.tasks.shape import PathText


@dataclass(frozen=True)
class ConfFile:
    """A configuration file of NCCL on a host; of a long file only the beginning."""

    path: PathText
    text: str


@dataclass(frozen=True)
class Setting:
    """A variable that a configuration file sets."""

    name: str
    value: str
    path: str
    line: int  # from 1


def settings(files: Iterable[ConfFile]) -> dict[str, Setting]:
    """The settings of all files, by name. If a name is set twice, the first file and the first line win.

    This follows NCCL 2.30: the text before the first `=` is the name, including blanks, and the rest is the
    value. Lines that begin with `#` or have no `=` are ignored.
    """
    found: dict[str, Setting] = {}
    for file in files:
        for number, line in enumerate(file.text.split("\n"), start=1):
            name, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                found.setdefault(name, Setting(name, value, file.path, number))
    return found


def effective(environment: Mapping[str, str], files: Iterable[ConfFile]) -> dict[str, str]:
    """The settings that NCCL uses: the environment overrides the files."""
    return {**{name: setting.value for name, setting in settings(files).items()}, **environment}
