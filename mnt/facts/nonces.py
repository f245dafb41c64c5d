"""What the hosts saw of the files that each of them wrote to shared storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sighting:
    """What a host saw of a file that another wrote: seconds until it could be read, or why it never could."""

    delay: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Nonce:
    """A file that one host wrote to shared storage, or why it could not; and what the others saw, by host."""

    writer: str
    error: str | None = None
    seen: Mapping[str, Sighting] = field(default_factory=dict)
