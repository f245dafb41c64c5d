"""The list of all checks, generated from the code: as text, as docs/checks.md, and as JSON. Pure."""

from __future__ import annotations

import importlib
import inspect
import itertools
import textwrap
from typing import Any

from mnt.preflight import checks as families
from mnt.preflight.registry import Check, all_checks

_HEAD = """\
# The checks of `mnt preflight`

`mnt preflight --list=markdown` generates this page from the docstrings of the checks.

A finding of severity `fail` makes preflight exit with code 1. `--only` and `--skip` take the names below. A
check does not judge a host whose facts are unknown. On an unreachable host, only `ssh` and `host-key` report
findings. If the inventory's interpreter does not run on a host, the checks of its packages report nothing.
"""


def as_text() -> str:
    return "\n\n".join(_entry_as_text(check) for check in all_checks())


def as_markdown() -> str:
    """The content of docs/checks.md."""
    parts = [_HEAD]
    for family, checks in itertools.groupby(all_checks(), key=lambda check: check.family):
        module = importlib.import_module(f"{families.__name__}.{family}")
        parts.append(f"## {family}\n\n{inspect.cleandoc(module.__doc__ or '')}\n")
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


def _entry_as_text(check: Check) -> str:
    text = f"{check.summary}\n{check.details}" if check.details else check.summary
    return f"{check.id} ({check.severity.value})\n{textwrap.indent(text, '    ')}"


def _entry_as_markdown(check: Check) -> str:
    body = f"{check.summary}\n\n{check.details}" if check.details else check.summary
    return f"### `{check.id}`\n\n{body}\n\nSeverity: {check.severity.value}.\n"
