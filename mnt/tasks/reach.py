"""Which hosts reach each other: all hosts listen, connect to each other, and end, in step."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, TypedDict

from msgspec import Meta

from mnt.fleet import HostConnection
from mnt.tasks.bounds import bound_of
from mnt.tasks.program import run_program
from mnt.tasks.shape import Port, shaped, wrong_answer

_LISTEN_WITHIN = 20.0  # seconds from the start: the hosts wait at most this long for the slowest one


class Listening(TypedDict):
    """The ports on which a host listens. `master` is false if another process holds the master port."""

    ports: Annotated[list[Port], Meta(max_length=64)]
    master: bool


class Target(TypedDict):
    """A peer to connect to. `master` is None if that port is not to be tried.

    To `nonce` it answers with the one of `answers` that belongs to the port; both are in hex.
    """

    name: str
    address: str
    master: int | None
    ports: list[int]
    nonce: str
    answers: dict[int, str]


Plan = Callable[[Mapping[str, Listening]], Mapping[str, Sequence[Target]]]


class Meeting:
    """Keeps the hosts of one run in step.

    `reached` contains their results by host, unchecked: a `mnt.facts.reach.Reached` for each target.

    Args:
        hosts: that take part; `reach` has to run on all of them at the same time.
        plan: which host connects to which; called when all hosts listen that will.
        patience: seconds that connecting may take.
    """

    def __init__(self, hosts: Sequence[str], plan: Plan, *, patience: float) -> None:
        self.reached: dict[str, Any] = {}
        self._plan = plan
        self._patience = patience
        self._start = time.monotonic()
        self._changed = threading.Condition()
        self._expected = set(hosts)  # that have not finished yet
        self._listening: dict[str, Listening] = {}
        self._targets: Mapping[str, Sequence[Target]] | None = None

    def heard(self, host: str, frame: dict[str, Any]) -> None:
        """Take a frame of the program: its ports, then its results. Raises HostError if it is not valid."""
        with self._changed:
            if host not in self._listening:
                self._listening[host] = shaped(host, frame.get("listening"), Listening, "listening")
            elif "reached" in frame and host not in self.reached:
                self.reached[host] = frame["reached"]
            else:
                raise wrong_answer(host, "a frame that is not its results")
            self._changed.notify_all()

    def leave(self, host: str) -> None:
        """Stop waiting for this host."""
        with self._changed:
            self._expected.discard(host)
            self._changed.notify_all()

    def stream(self, host: str) -> Iterator[bytes]:
        """A host's standard input: its targets, once all hosts listen; it ends once all have connected."""
        with self._changed:
            self._await(self._listening, self._start + _LISTEN_WITHIN)
            if self._targets is None:
                self._targets = self._plan(self._listening)
                self._expected &= set(self._targets)
            targets = self._targets.get(host)
        if targets is None:  # the host was too late
            return
        yield json.dumps({"targets": targets}).encode() + b"\n"
        with self._changed:
            self._await(self.reached, time.monotonic() + self._patience)

    def _await(self, arrived: Mapping[str, object], deadline: float) -> None:
        """Wait for all expected hosts. To be called with the lock held."""
        self._changed.wait_for(lambda: self._expected <= set(arrived), max(0.0, deadline - time.monotonic()))


def reach(
    connection: HostConnection, meeting: Meeting, args: dict[str, Any], timeout: float, targets: int
) -> None:
    """One host's part of the meeting.

    Args:
        args: the arguments of `mnt/remote/net/reach.py`.
        timeout: seconds for everything.
        targets: at most so many will be given to the host.

    Raises HostError; the meeting then continues without the host.
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
            bound=bound_of("net.reach", 512 * targets),
        )
    finally:
        meeting.leave(host)
