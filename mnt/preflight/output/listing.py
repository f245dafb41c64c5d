"""The list of all checks, made from the code: for a terminal, for docs/checks.md, for programs. Pure."""

from __future__ import annotations

import importlib
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from typing import Any

from mnt.preflight.registry import Check, all_checks

_HEAD = """\
# The checks of `mnt preflight`

Written by `mnt preflight --list=markdown` from the checks' own docstrings.

A finding of severity `fail` makes preflight exit with 1. `--only` and `--skip` take the names below. A host
is not judged where a check cannot know: on an unreachable one only `ssh` and `host-key` speak, and where the
inventory's interpreter does not run, nothing is said of its packages.
"""


def as_text() -> str:
    return "\n\n".join(_entry_as_text(check) for check in all_checks())


def as_markdown() -> str:
    """docs/checks.md, whole."""
    parts = [_HEAD]
    for family, checks in _by_family():
        parts.append(f"## {family}\n\n{_about(checks[0])}\n")
        parts += [_entry_as_markdown(check) for check in checks]
    return "\n".join(parts)


def as_documents() -> list[dict[str, Any]]:
    return [
        {
            "check": check.id,
            "family": check.family,
            "severity": check.severity.value,
            "summary": check.summary,
            "details": check.details,
        }
        for check in all_checks()
    ]


def _by_family() -> Iterator[tuple[str, list[Check]]]:
    for family, checks in itertools.groupby(all_checks(), key=lambda check: check.family):
        yield family, list(checks)


def _about(check: Check) -> str:
    """The docstring of a check's module."""
    return inspect.cleandoc(importlib.import_module(check.function.__module__).__doc__ or "")


def _entry_as_text(check: Check) -> str:
    text = f"{check.summary}\n{check.details}" if check.details else check.summary
    return f"{check.id} ({check.severity.value})\n{textwrap.indent(text, '    ')}"


def _entry_as_markdown(check: Check) -> str:
    body = f"{check.summary}\n\n{check.details}" if check.details else check.summary
    return f"### `{check.id}`\n\n{body}\n\nSeverity: {check.severity.value}.\n"
