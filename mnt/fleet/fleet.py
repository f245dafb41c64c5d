"""Run a task on many hosts at once, over one connection per host."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from mnt.errors import HostError, OutputError
from mnt.fleet.connection import HostConnection
from mnt.fleet.login.shared import Shared
from mnt.fleet.results import Outcome, Results
from mnt.fleet.wire.timeouts import Timeouts
from mnt.inventory.model import Host

T = TypeVar("T")
OnResult = Callable[[Outcome[Any]], None]
Task = Callable[..., T]


class Fleet:
    """Hosts, each with one connection for the life of the fleet. Leaving the `with` block closes it.

    Args:
        hosts: their names differ; all results are in their order.
        fanout: the number of hosts that work on a task at the same time.
        timeouts: the limit of each phase.
        connect: makes the connection to a host, without opening it.
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection, also those to gateways. Running tasks end with a HostError."""
        for connection in self._connections.values():
            connection.close()
        self._shared.close()

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(self._hosts.values())

    def connection(self, name: str) -> HostConnection:
        """The host's connection, open or not. Raises KeyError."""
        return self._connections[name]

    def run(self, task: Task[T], *args: Any, on_result: OnResult | None = None) -> Results[T]:
        """Run `task(connection, *args)` on every host. See `run_each`."""
        return self.run_each(task, dict.fromkeys(self._hosts, args), on_result=on_result)

    def run_each(
        self,
        task: Task[T],
        arguments: Mapping[str, tuple[Any, ...]],
        *,
        on_result: OnResult | None = None,
        fanout: int | None = None,
    ) -> Results[T]:
        """Run `task(connection, *arguments[host])` on the hosts that `arguments` names.

        Args:
            task: raises HostError; any other exception becomes the cause of a HostError of phase `command`.
            on_result: called in this thread with each outcome as it comes.
            fanout: in place of the fleet's own, for tasks that wait for each other.

        If a private key needs a passphrase and no agent holds the key, the passphrase is asked for at the
        terminal before anything else, once for all hosts.

        Returns the outcomes in the order of the fleet's hosts. A KeyboardInterrupt, or an OutputError of a
        task, which is the head's own fault, closes every connection and is raised again at once. Raises
        KeyError for a name that is no host of the fleet.
        """
        work = {name: (self._connections[name], args) for name, args in arguments.items()}
        order = [name for name in self._hosts if name in work]
        waiting = deque(order)
        done: queue.SimpleQueue[Outcome[T]] = queue.SimpleQueue()

        def work_off() -> None:
            with contextlib.suppress(IndexError):  # of popleft: no host is left
                while True:
                    connection, args = work[waiting.popleft()]
                    done.put(_outcome(connection, task, args))

        outcomes: dict[str, Outcome[T]] = {}
        try:
            self._shared.unlock(login for name in order for login in self._connections[name].key_logins)
            for _ in range(min(fanout or self._fanout, len(order))):
                # Daemon threads: one that hangs must not keep the process from ending.
                threading.Thread(target=work_off, daemon=True, name="mnt-fleet").start()
            for _ in order:
                outcome = done.get()
                outcomes[outcome.host] = outcome
                if outcome.error is not None and isinstance(outcome.error.__cause__, OutputError):
                    raise outcome.error.__cause__
                if on_result is not None:
                    on_result(outcome)
        except BaseException:
            waiting.clear()
            self.close()
            raise
        return Results({name: outcomes[name] for name in order})


def _outcome(connection: HostConnection, task: Task[T], args: tuple[Any, ...]) -> Outcome[T]:
    """The outcome of a task on one host; nothing that the task raises escapes."""
    started = time.monotonic()
    value, error = None, None
    try:
        connection.open()
        value = task(connection, *args)
    except HostError as failure:
        error = failure
    except BaseException as bug:  # noqa: BLE001 - a bug on one host must not end the tasks on the others
        error = HostError(connection.target.name, "command", f"{type(bug).__name__}: {bug}")
        error.__cause__ = bug
    return Outcome(connection.target.name, value, error, time.monotonic() - started)
