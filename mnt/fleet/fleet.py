"""Run a task on many hosts at once, over one connection a host."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from mnt.errors import HostError
from mnt.fleet.connection import HostConnection
from mnt.fleet.login.shared import Shared
from mnt.fleet.results import Outcome, Results
from mnt.fleet.wire.timeouts import Timeouts
from mnt.inventory.model import Host

T = TypeVar("T")
OnResult = Callable[[Outcome[Any]], None]
Task = Callable[..., T]

_ABANDON_AFTER = 1.0  # seconds that a task has to end once its connection was closed


class Fleet:
    """Hosts, reached over one connection each for the life of the fleet; closed by leaving the `with` block.

    Args:
        hosts: their names differ; their order is that of all results.
        fanout: hosts that work on a task at the same time.
        timeouts: limits of each phase.
        connect: makes the connection to a host, which need not be open.
    """

    def __init__(
        self,
        hosts: Iterable[Host],
        *,
        fanout: int = 64,
        timeouts: Timeouts | None = None,
        connect: Callable[[Host, Shared], HostConnection] = HostConnection,
    ) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._fanout = max(1, fanout)
        self._shared = Shared(timeouts or Timeouts())
        self._connections = {name: connect(host, self._shared) for name, host in self._hosts.items()}

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection, those to gateways too. Tasks that run end with a HostError."""
        for connection in self._connections.values():
            connection.close()
        self._shared.close()

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(self._hosts.values())

    def host(self, name: str) -> Host:
        """Raises KeyError."""
        return self._hosts[name]

    def connection(self, name: str) -> HostConnection:
        """The host's connection, which may not be open. Raises KeyError."""
        return self._connections[name]

    def run(
        self,
        task: Task[T],
        *args: Any,
        on_result: OnResult | None = None,
        timeout: float | None = None,
    ) -> Results[T]:
        """Run `task(connection, *args)` on every host. See `run_each`."""
        return self.run_each(task, dict.fromkeys(self._hosts, args), on_result=on_result, timeout=timeout)

    def run_each(
        self,
        task: Task[T],
        arguments: Mapping[str, tuple[Any, ...]],
        *,
        on_result: OnResult | None = None,
        timeout: float | None = None,
        fanout: int | None = None,
    ) -> Results[T]:
        """Run `task(connection, *arguments[host])` on the hosts that `arguments` names.

        Args:
            task: raises HostError; whatever else it raises becomes the cause of one, of phase `command`.
            on_result: called in this thread with each outcome as it comes.
            timeout: seconds for the task on one host, logging in included; None: as long as it takes.
            fanout: in place of the fleet's own, for tasks that wait for each other.

        A private key that needs a passphrase, which no agent holds, is asked for at the terminal before
        anything else, once for all hosts.

        Returns the outcomes in the order of the fleet's hosts. A KeyboardInterrupt closes every connection
        and is raised again at once. Raises KeyError for a name that is no host of the fleet.
        """
        for name in arguments:
            self._hosts[name]
        order = [name for name in self._hosts if name in arguments]
        batch = _Batch(task, {name: (self._connections[name], arguments[name]) for name in order}, timeout)
        outcomes: dict[str, Outcome[T]] = {}
        try:
            self._shared.unlock(login for name in order for login in self._connections[name].key_logins)
            for outcome in batch.outcomes(fanout or self._fanout):
                outcomes[outcome.host] = outcome
                if on_result is not None:
                    on_result(outcome)
        except BaseException:
            batch.cancel()
            self.close()
            raise
        return Results({name: outcomes[name] for name in order})


class _Batch:
    """One task on several hosts, worked on by threads that nobody has to wait for."""

    def __init__(
        self,
        task: Callable[..., Any],
        work: Mapping[str, tuple[HostConnection, tuple[Any, ...]]],
        limit: float | None,
    ) -> None:
        self._task = task
        self._work = work
        self._limit = limit
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Outcome[Any]] = queue.SimpleQueue()
        self._started: dict[str, float] = {}  # host -> time.monotonic()
        self._late: dict[str, HostError] = {}  # hosts past the limit; their connections are closed
        self._missing = set(work)  # hosts without an outcome
        for name in work:
            self._waiting.put(name)

    def outcomes(self, fanout: int) -> Iterator[Outcome[Any]]:
        """Each outcome as it comes, one a host."""
        for _ in range(min(fanout, len(self._work))):
            self._add_worker()
        while self._missing:
            try:
                outcome = self._done.get(timeout=self._patience())
            except queue.Empty:
                yield from self._enforce_limit()
                continue
            if outcome.host in self._missing:  # else it came after it had been abandoned
                self._missing.discard(outcome.host)
                late = self._late.get(outcome.host)
                yield outcome if late is None or outcome.ok else replace(outcome, error=late)

    def cancel(self) -> None:
        """Start no more of it."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._waiting.get_nowait()

    def _add_worker(self) -> None:
        # Daemon threads: one that hangs in getaddrinfo must not keep the process from ending.
        threading.Thread(target=self._work_off, daemon=True, name="mnt-fleet").start()

    def _work_off(self) -> None:
        while True:
            try:
                name = self._waiting.get_nowait()
            except queue.Empty:
                return
            self._started[name] = time.monotonic()
            self._done.put(self._run(name))

    def _run(self, name: str) -> Outcome[Any]:
        connection, args = self._work[name]
        value, error = None, None
        try:
            connection.open()
            value = self._task(connection, *args)
        except HostError as failure:
            error = failure
        except BaseException as bug:  # noqa: BLE001 - one host's bug must not take the others down
            error = HostError(name, "command", f"{type(bug).__name__}: {bug}")
            error.__cause__ = bug
        return Outcome(name, value, error, time.monotonic() - self._started[name])

    def _due(self, name: str, limit: float) -> float:
        """When a host that works has to be looked after: it is late, or late and does not end."""
        due = self._started[name] + limit
        return due + _ABANDON_AFTER if name in self._late else due

    def _patience(self) -> float | None:
        """Seconds until the next host is due; None: no host ever is."""
        if self._limit is None:
            return None
        due = [self._due(name, self._limit) for name in self._missing if name in self._started]
        return max(0.0, min(due, default=time.monotonic() + self._limit) - time.monotonic())

    def _enforce_limit(self) -> Iterator[Outcome[Any]]:
        """Close the connections of hosts that are late; abandon those where that did not help."""
        assert self._limit is not None
        now = time.monotonic()
        for name in [name for name in self._missing if name in self._started]:
            if now < self._due(name, self._limit):
                continue
            connection, _ = self._work[name]
            if name in self._late:
                self._missing.discard(name)
                self._add_worker()  # in place of the thread that hangs
                yield Outcome(name, None, self._late[name], now - self._started[name])
            else:
                self._late[name] = HostError(name, connection.phase, f"not done within {self._limit:g} s")
                connection.close()
