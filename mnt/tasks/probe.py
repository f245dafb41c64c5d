"""Gather a host's facts in one round trip."""

from __future__ import annotations

from typing import Any

from mnt.fleet import HostConnection
from mnt.tasks.program import run_program


def probe(connection: HostConnection, args: dict[str, Any], *, timeout: float = 45.0) -> dict[str, Any]:
    """The facts, as `mnt.preflight.facts.HostFacts.parse` reads them.

    Args:
        args: what depends on the inventory; `mnt/remote/probe.py` lists it.
        timeout: seconds; what may hang on the host has shorter limits there.

    Raises:
        NoPython: the host has no Python >= 3.8; the error holds what plain sh could tell.
        HostError: the host could not be reached, or the probe failed.
    """
    return run_program(connection, "probe", args, timeout=timeout)
