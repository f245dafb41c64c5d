"""Gather a host's facts in one round trip."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any, TypedDict

from mnt.fleet import HostConnection
from mnt.tasks.program import run_program
from mnt.tasks.shape import Moment, shaped


def probe(connection: HostConnection, args: dict[str, Any], *, timeout: float = 45.0) -> dict[str, Any]:
    """The facts, as `mnt.facts.host.HostFacts.parse` reads them.

    This adds what only the head knows: `clock_offset` and `clock_uncertainty`, and `noise`, the output of
    start-up files.

    Args:
        args: the arguments that `mnt/remote/probe/probe.py` lists.
        timeout: seconds; operations that may hang have shorter limits on the host.

    Raises:
        NoPython: the host has no Python >= 3.8; the error contains the facts that plain sh can find.
        HostError: the host could not be reached, or the probe failed.
    """
    clock = _Clock()
    noise: list[str] = []
    answer = run_program(
        connection,
        "probe.probe",
        {**args, "clock": True},
        stdin=clock.ask(),
        timeout=timeout,
        on_frame=partial(clock.hear, connection.target.name),
        on_noise=noise.append,
    )
    return {
        **answer,
        "clock_offset": clock.offset,
        "clock_uncertainty": clock.uncertainty,
        "noise": "".join(noise),
    }


class _Time(TypedDict):
    time: Moment


class _Clock:
    """Compares the host's clock with ours, over one round trip of a program that runs there already.

    The login and start-up files therefore play no part. The host reads its clock between our question and the
    arrival of its answer; when exactly is unknown.
    """

    def __init__(self) -> None:
        self._asked = 0.0
        self.offset = 0.0  # seconds that the host's clock is ahead
        self.uncertainty: float | None = None  # seconds; None: it has not answered

    def ask(self) -> Iterator[bytes]:
        """The program's standard input; its end is the question."""
        self._asked = time.time()
        yield from ()

    def hear(self, host: str, frame: dict[str, Any]) -> None:
        """Raises HostError."""
        heard = time.time()
        self.offset = shaped(host, frame, _Time, "frame")["time"] - (self._asked + heard) / 2
        self.uncertainty = (heard - self._asked) / 2
