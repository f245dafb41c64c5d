"""Who reaches whom? The hosts listen, connect to each other and end, all in step."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict

from mnt.fleet import HostConnection
from mnt.tasks.program import run_program
from mnt.tasks.shape import shaped

_LISTEN_WITHIN = 20.0  # seconds from the start: the others wait for the slowest host that long


class Listening(TypedDict):
    """Where a host listens. `master` is false where somebody else holds the master port."""

    ports: list[int]
    master: bool


class Target(TypedDict):
    """A peer to connect to. `master` is None where that port is not to be tried."""

    name: str
    address: str
    master: int | None
    ports: list[int]


_Reached = dict[str, dict[str, Any]]  # by target, in the shape of mnt.facts.reach.Reached
Plan = Callable[[Mapping[str, Listening]], Mapping[str, Sequence[Target]]]


class Meeting:
    """Keeps the hosts of one run in step. `reached` holds what they saw, by host and target.

    Args:
        hosts: who is expected; `reach` has to run on all of them at the same time.
        plan: says who connects to whom, once all that will listen do.
        patience: seconds that connecting may take.
    """

    def __init__(self, hosts: Sequence[str], plan: Plan, *, patience: float) -> None:
        self.reached: dict[str, _Reached] = {}
        self._plan = plan
        self._patience = patience
        self._start = time.monotonic()
        self._changed = threading.Condition()
        self._expected = set(hosts)  # those from whom something is still awaited
        self._listening: dict[str, Listening] = {}
        self._targets: Mapping[str, Sequence[Target]] | None = None

    def heard(self, host: str, frame: dict[str, Any]) -> None:
        """Take a frame of the program's. Raises HostError where it is none."""
        with self._changed:
            if "listening" in frame:
                self._listening[host] = shaped(host, frame["listening"], Listening, "listening")
            else:
                self.reached[host] = shaped(host, frame.get("reached"), _Reached, "reached")
            self._changed.notify_all()

    def leave(self, host: str) -> None:
        """Nobody waits for that host any more."""
        with self._changed:
            self._expected.discard(host)
            self._changed.notify_all()

    def stream(self, host: str) -> Iterator[bytes]:
        """A host's standard input: its targets, once all listen; its end, once all have connected."""
        with self._changed:
            self._await(self._listening, self._start + _LISTEN_WITHIN)
            if self._targets is None:
                self._targets = self._plan(self._listening)
                self._expected &= set(self._targets)
            targets = self._targets.get(host)
        if targets is None:  # it came too late
            return
        yield json.dumps({"targets": targets}).encode() + b"\n"
        with self._changed:
            self._await(self.reached, time.monotonic() + self._patience)

    def _await(self, arrived: Mapping[str, object], deadline: float) -> None:
        """Wait for all that are expected. To be called with the lock held."""
        self._changed.wait_for(lambda: self._expected <= set(arrived), max(0.0, deadline - time.monotonic()))


def reach(connection: HostConnection, meeting: Meeting, args: dict[str, Any], timeout: float) -> None:
    """One host's part of the meeting.

    Args:
        args: those of `mnt/remote/net/reach.py`.
        timeout: seconds for all of it.

    Raises HostError; the meeting goes on without the host then.
    """
    host = connection.target.name
    try:
        run_program(
            connection,
            "net.reach",
            args,
            stdin=meeting.stream(host),
            on_frame=partial(meeting.heard, host),
            timeout=timeout,
        )
    finally:
        meeting.leave(host)
