"""What a host has that an inventory could name, typed. Only `Survey.parse` reads the host's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from mnt.facts.host import Mounted, PathFacts
from mnt.remote.common.forms import ENVIRONMENTS, STORAGE
from mnt.tasks.shape import Address, PathText, Short, parsed


@dataclass(frozen=True)
class Environment:
    """A Python environment: a venv, or one of conda's. It was found, and not started."""

    path: PathText  # of its interpreter
    kind: Literal["venv", "conda"]
    version: Short  # of Python: 3.11.2
    packages: Mapping[Short, Short] = field(default_factory=dict)  # canonical name (PEP 503) -> version
    exposed: Short | None = None  # why another user could have written it; None: nobody could


@dataclass(frozen=True)
class Survey:
    """The answer of one host."""

    environments: Annotated[tuple[Environment, ...], Meta(max_length=ENVIRONMENTS)] = ()
    # Mounts whose files other hosts may have too.
    storage: Annotated[tuple[Mounted, ...], Meta(max_length=STORAGE)] = ()
    paths: Mapping[str, PathFacts] = field(default_factory=dict)  # their mount points
    home: Mounted | None = None  # the mount that holds the user's home directory
    routes: Mapping[Address, Address | None] = field(
        default_factory=dict
    )  # peer -> own address; None: no route

    def __post_init__(self) -> None:
        """Raises ValueError for two mounts at one place: the host tells only of the one on top."""
        points = [mount.point for mount in self.storage]
        if len(points) != len(set(points)):
            raise ValueError("two mounts at one place")

    @classmethod
    def parse(cls, host: str, document: Mapping[str, Any]) -> Survey:
        """Raises HostError (phase `answer`) if the answer is not valid."""
        return parsed(host, document, cls, "survey")
