"""The NCCL of a host: its version, and the files that it takes settings from. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mnt.preflight.facts import HostFacts


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


def nccl_version(facts: HostFacts) -> tuple[int, ...] | None:
    """(2, 28, 9): of the library that torch loads, else of the installed package; None where nobody knows."""
    packages = (version for name, version in facts.packages.items() if name.startswith("nvidia-nccl-"))
    text = facts.nccl_library or next(packages, "")
    numbers = re.match(r"\d+(\.\d+)+", text)
    return tuple(int(number) for number in numbers[0].split(".")) if numbers else None


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
