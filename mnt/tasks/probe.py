"""Gather a host's facts in one round trip."""

from __future__ import annotations

import time
from typing import Any

from mnt.fleet import HostConnection
from mnt.tasks.program import run_program


def probe(connection: HostConnection, args: dict[str, Any], *, timeout: float = 45.0) -> dict[str, Any]:
    """The facts, as `mnt.preflight.facts.HostFacts.parse` reads them.

    `clock_offset` is added here: the host's time less that of the head in the middle of the round trip.

    Args:
        args: what depends on the inventory; `mnt/remote/probe.py` lists it.
        timeout: seconds; what may hang on the host has shorter limits there.

    Raises:
        NoPython: the host has no Python >= 3.8; the error holds what plain sh could tell.
        HostError: the host could not be reached, or the probe failed.
    """
    before = time.time()
    answer = run_program(connection, "probe", args, timeout=timeout)
    middle = (before + time.time()) / 2
    if isinstance(answer.get("time"), float):
        answer["clock_offset"] = answer["time"] - middle
    return answer
