"""One variable of a node's environment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Variable:
    """A name, its value, and why it has that value."""

    name: str
    value: str
    reason: str
