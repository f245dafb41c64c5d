"""The conversation with the receivers on all hosts, step by step.

The receivers (mnt/remote/push/receive.py) read commands from standard input. A step is sent to several hosts,
and ends when all have answered. If the session is left before the commit, the standard input of the receivers
ends, and they undo their changes.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mnt.fleet import Fleet, Outcome
from mnt.remote.common.life import HEARTBEAT
from mnt.tasks.push import converse
from mnt.tasks.shape import wrong_answer

Frame = dict[str, Any]

_SWITCHING = ("switch", "commit", "prune", "confirm")
_CLEANUP = 20.0  # seconds that hosts have to undo their changes before their connections are closed


@dataclass(frozen=True)
class HostStep:
    """One step for one host."""

    step: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    payload: Callable[[], Iterable[bytes]] = tuple  # makes the bytes that follow the command


class Progress:
    """Receives the progress of a push. This base class ignores it."""

    def step(self, step: str, size: int) -> None:
        """A step begins; `size` bytes in total will be sent to all hosts."""

    def warn(self, text: str) -> None:
        """Something that a person should know, in one line."""

    def sent(self, count: int) -> None:
        """`count` more bytes were sent to some host. Called from several threads."""


class StepFailed(Exception):
    """A host did not complete its step; `Session.ended` says why."""


class _Conversation:
    """One host: the bytes for its receiver, and their number."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._commands: queue.SimpleQueue[HostStep | None] = queue.SimpleQueue()
        # The step to be answered next, "open" without a command; None: no frame may come.
        self._expected: str | None = "open"
        self._over = threading.Event()
        self.payload_sent = 0  # bytes

    def say(self, command: HostStep) -> None:
        self._expected = command.step
        self._commands.put(command)

    def check(self, host: str, frame: Frame) -> None:
        """Raises HostError if the frame belongs to another step than the expected one."""
        expected, self._expected = self._expected, None
        if frame["step"] != expected:
            wanted = "none" if expected is None else repr(expected)
            raise wrong_answer(host, f"step {frame['step'][:40]!r} instead of {wanted}")

    def end(self) -> None:
        """Send no more commands; a payload that is being sent stops at its next chunk."""
        self._over.set()
        self._commands.put(None)

    def _next(self) -> HostStep | bytes | None:
        """The next command; a sign of life if there is none for a while; None at the end."""
        try:
            return self._commands.get(timeout=HEARTBEAT)
        except queue.Empty:
            return b"\n"

    def stdin(self) -> Iterator[bytes]:
        while (command := self._next()) is not None and not self._over.is_set():
            if isinstance(command, bytes):
                yield command
                continue
            yield json.dumps({"do": command.step, **command.arguments}).encode("ascii") + b"\n"
            for chunk in command.payload():
                if self._over.is_set():
                    return
                yield chunk
                self.payload_sent += len(chunk)
                self._progress.sent(len(chunk))


class Session:
    """A push in progress.

    Args:
        beacons: host -> the name of its beacon (see `mnt.tasks.push.converse`), for all hosts of the push.
        who: the user who pushes, for people.
        progress: receives the progress.
        entries: of the manifest, if there is one.

    Attributes:
        ended: host -> the outcome of its receiver, for the receivers that have ended.
        reached: host -> the last step that it has completed.
        frames: host -> what it answered to that step.
        seconds: host -> seconds from the start until it completed its last step before the switch.
    """

    def __init__(
        self, fleet: Fleet, beacons: Mapping[str, str], who: str, progress: Progress, entries: int
    ) -> None:
        self._fleet = fleet
        self._beacons = beacons
        self._who = who
        self._entries = entries
        self._conversations = {host: _Conversation(progress) for host in beacons}
        self._events: queue.SimpleQueue[tuple[str, Frame | Outcome[Frame]]] = queue.SimpleQueue()
        self._start = time.monotonic()
        self.ended: dict[str, Outcome[Frame]] = {}
        self.reached: dict[str, str] = {}
        self.frames: dict[str, Frame] = {}
        self.seconds: dict[str, float] = dict.fromkeys(beacons, 0.0)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the receivers. At the end of the block, end their input, and wait until they have cleaned up.

        This does not wait for hosts that were not reached yet.
        """
        threading.Thread(target=self._run, daemon=True, name="mnt-push").start()
        try:
            yield
        finally:
            for conversation in self._conversations.values():
                conversation.end()
            deadline = time.monotonic() + _CLEANUP
            with contextlib.suppress(queue.Empty):
                while self.reached.keys() - self.ended.keys():
                    self._next_event(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        tasks = {
            host: (
                beacon,
                self._who,
                self._conversations[host].stdin(),
                partial(self._take, host),
                self._entries,
            )
            for host, beacon in self._beacons.items()
        }
        self._fleet.run_each(
            converse,
            tasks,
            on_result=lambda outcome: self._events.put((outcome.host, outcome)),
            fanout=len(tasks),  # the hosts wait for each other
        )

    def _take(self, host: str, frame: Frame) -> None:
        self._conversations[host].check(host, frame)
        self._events.put((host, frame))

    def payload_sent(self, host: str) -> int:
        """The payload bytes sent to a host so far."""
        return self._conversations[host].payload_sent

    def ask(self, commands: Mapping[str, HostStep]) -> dict[str, Frame]:
        """Send each host its command, and wait until all have answered.

        Raises StepFailed as soon as the receiver of any host in the session has ended.
        """
        self.tell(commands)
        return self.hear(commands)

    def tell(self, commands: Mapping[str, HostStep]) -> None:
        """Send each host its command. Raises StepFailed, and sends nothing, if any receiver has ended."""
        if self.ended:
            raise StepFailed
        for host, command in commands.items():
            self._conversations[host].say(command)

    def hear(self, hosts: Iterable[str], *, patient: bool = False) -> dict[str, Frame]:
        """Wait for one frame of each host. Raises StepFailed if a receiver ends.

        Args:
            patient: raise StepFailed only after all hosts have answered or ended.
        """
        waiting = set(hosts)
        heard: dict[str, Frame] = {}
        while waiting - self.ended.keys() and (patient or not self.ended):
            host, frame = self._next_event()
            if frame is not None:
                heard[host] = frame
                waiting.discard(host)
        if self.ended:
            raise StepFailed
        return heard

    def _next_event(self, timeout: float | None = None) -> tuple[str, Frame | None]:
        """The next frame of any host; None: its receiver has ended. Raises queue.Empty after `timeout` s."""
        host, event = self._events.get(timeout=timeout)
        if isinstance(event, Outcome):
            self.ended[host] = event
            return host, None
        self.reached[host] = event["step"]
        self.frames[host] = event
        if event["step"] not in _SWITCHING:
            self.seconds[host] = time.monotonic() - self._start
        return host, event
