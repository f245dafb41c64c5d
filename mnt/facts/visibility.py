"""Whether the hosts see a file that one of them wrote to shared storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mnt.tasks.visible import Seen


@dataclass(frozen=True)
class Visibility:
    """The test of one storage path."""

    writer: str  # the host that wrote the file
    error: str | None = None  # why it could not write the file
    sightings: Mapping[str, Seen] = field(default_factory=dict)  # by reading host
