"""Talking to the receiver on every host at once, step by step.

The hosts' programs (mnt/remote/push/receive.py) wait for commands on their standard input. A step is asked of
several hosts, and goes on when all have answered. Leaving the session before the commit ends their input,
whereupon they take back what they did.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from mnt.errors import HostError
from mnt.fleet import Fleet, Outcome
from mnt.tasks.push import converse

Frame = dict[str, Any]

_SWITCHING = ("switch", "commit", "prune")
_CLEANUP = 20.0  # seconds that hosts have to take everything back, before their connections are closed


@dataclass(frozen=True)
class Command:
    """A step for one host. `payload` makes the bytes that follow the command, if any do."""

    step: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    payload: Callable[[], Iterable[bytes]] = tuple


class Progress:
    """Told how a push goes. This one keeps it to itself."""

    def step(self, step: str, size: int) -> None:
        """A step begins, in which all hosts together will be sent `size` bytes."""

    def sent(self, count: int) -> None:
        """That many bytes more have gone to some host. Called from several threads."""


class StepFailed(Exception):
    """Some host did not do its step; `Session.ended` says why."""


class _Conversation:
    """One host: the bytes that go to its program, and how many they were."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._asked: queue.SimpleQueue[str] = queue.SimpleQueue()  # steps that it has not told of yet
        self._asked.put("open")  # that one without being asked
        self._over = threading.Event()
        self.payload_sent = 0  # bytes

    def say(self, command: Command) -> None:
        self._asked.put(command.step)
        self._commands.put(command)

    def check(self, host: str, frame: Frame) -> None:
        """Raises HostError for a frame of another step than the one that is due."""
        due = "none" if self._asked.empty() else self._asked.get()
        if frame["step"] != due:
            raise HostError(host, "answer", f"step {frame['step']!r}, where {due!r} was due")

    def end(self) -> None:
        """No more commands; what is being sent stops at its next chunk."""
        self._over.set()
        self._commands.put(None)

    def stdin(self) -> Iterator[bytes]:
        while (command := self._commands.get()) is not None and not self._over.is_set():
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
        fleet: with a fan-out of at least as many as there are hosts, for each waits for the others.
        nonces: host -> its nonce, for all hosts of the push.
        who: who pushes.
        progress: told how it goes.

    Attributes:
        ended: host -> how its program ended, for those whose has.
        reached: host -> the last step that it has done.
        seconds: host -> how long after the start it had done the last step before the switch.
    """

    def __init__(self, fleet: Fleet, nonces: Mapping[str, str], who: str, progress: Progress) -> None:
        self._fleet = fleet
        self._nonces = nonces
        self._who = who
        self._conversations = {host: _Conversation(progress) for host in nonces}
        self._events: queue.SimpleQueue[tuple[str, Frame | Outcome[Frame]]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True, name="mnt-push")
        self._start = time.monotonic()
        self.ended: dict[str, Outcome[Frame]] = {}
        self.reached: dict[str, str] = {}
        self.seconds: dict[str, float] = dict.fromkeys(nonces, 0.0)

    def __enter__(self) -> Session:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def _run(self) -> None:
        def hear(host: str) -> Callable[[Frame], None]:
            def take(frame: Frame) -> None:
                self._conversations[host].check(host, frame)
                self._events.put((host, frame))

            return take

        tasks = {
            host: (nonce, self._who, self._conversations[host].stdin(), hear(host))
            for host, nonce in self._nonces.items()
        }
        self._fleet.run_each(
            converse, tasks, on_result=lambda outcome: self._events.put((outcome.host, outcome))
        )

    def payload_sent(self, host: str) -> int:
        """Bytes of payload that went to a host so far."""
        return self._conversations[host].payload_sent

    def ask(self, commands: Mapping[str, Command]) -> dict[str, Frame]:
        """Have each host do its step, and wait until all have answered.

        Raises StepFailed as soon as any host of the session has ended instead.
        """
        self.tell(commands)
        return self.hear(commands)

    def tell(self, commands: Mapping[str, Command]) -> None:
        """Have each host do its step. Raises StepFailed, and tells nobody, if any host has ended."""
        if self.ended:
            raise StepFailed
        for host, command in commands.items():
            self._conversations[host].say(command)

    def hear(self, hosts: Iterable[str], *, patient: bool = False) -> dict[str, Frame]:
        """One frame of each host. Raises StepFailed if a host ends; `patient`: not before all have spoken."""
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

    def finish(self) -> None:
        """End the hosts' input, and wait until their programs have ended and cleaned up.

        A host that has not been reached yet is not waited for.
        """
        for conversation in self._conversations.values():
            conversation.end()
        deadline = time.monotonic() + _CLEANUP
        with contextlib.suppress(queue.Empty):
            while self.reached.keys() - self.ended.keys():
                self._next_event(max(0.0, deadline - time.monotonic()))

    def _next_event(self, timeout: float | None = None) -> tuple[str, Frame | None]:
        """Whatever a host says next; None: it has ended. Raises queue.Empty after `timeout` seconds."""
        host, event = self._events.get(timeout=timeout)
        if isinstance(event, Outcome):
            self.ended[host] = event
            return host, None
        self.reached[host] = event["step"]
        if event["step"] not in _SWITCHING:
            self.seconds[host] = time.monotonic() - self._start
        return host, event
