"""Run one command on all hosts of a fleet, to its end or until it is cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mnt.fleet import Fleet, HostConnection, Outcome, raise_broken_pipe
from mnt.run.capture import Capture
from mnt.run.feed import Source
from mnt.run.live import Live
from mnt.run.outdir import HostFiles
from mnt.run.summary import HostRun, RunSummary
from mnt.tasks.command import Sink, run_command
from mnt.tasks.wrapper import Command


@dataclass(frozen=True)
class Order:
    """The work for each host."""

    command: Command
    stdin: Source | None = None  # sent to every host
    timeout: float | None = None  # seconds for the command on one host
    fail_fast: bool = False  # end the command on all hosts as soon as one host is not ok


class Outputs:
    """The destinations of the hosts' output.

    Args:
        live: shows it immediately.
        keep: keep it for the summary.
        directory: also write it to files there.
    """

    def __init__(self, *, live: Live | None, keep: bool, directory: Path | None = None) -> None:
        self._live = live
        self._keep = keep
        self._directory = directory
        self._gates: dict[str, _Gate] = {}
        self.kept: dict[str, Capture] = {}

    def open(self, host: str, opened: ExitStack) -> Sink:
        """The sink of a host that was reached; `opened` closes its files. Raises OSError."""
        sinks: list[Sink] = []
        if self._live is not None:
            sinks.append(self._live.sink(host))
        if self._keep:
            self.kept[host] = Capture()
            sinks.append(self.kept[host])
        if self._directory is not None:
            sinks.append(opened.enter_context(HostFiles(self._directory, host)))
        self._gates[host] = _Gate(sinks)
        return self._gates[host]

    def close(self) -> None:
        """Ignore all further output: a host that was given up may still send some."""
        for gate in list(self._gates.values()):
            gate.close()


class _Gate:
    """Passes output on to several sinks, until it is closed."""

    def __init__(self, sinks: list[Sink]) -> None:
        self._sinks = sinks
        self._lock = threading.Lock()

    def stdout(self, data: bytes) -> None:
        with self._lock:
            for sink in self._sinks:
                sink.stdout(data)

    def stderr(self, data: bytes) -> None:
        with self._lock:
            for sink in self._sinks:
                sink.stderr(data)

    def close(self) -> None:
        with self._lock:
            self._sinks = []


class _Enough(Exception):
    """A host has failed, so the other hosts stop."""


def run(fleet: Fleet, order: Order, outputs: Outputs, on_end: Callable[[HostRun], None]) -> RunSummary:
    """Run the command on every host.

    Args:
        on_end: is called with each host as it ends.

    An interrupt ends the command on all hosts, and the summary says so. Raises BrokenPipeError if the reader
    of this process's output is gone.
    """
    runs: dict[str, HostRun] = {}

    def task(connection: HostConnection) -> int:
        with ExitStack() as opened:
            sink = outputs.open(connection.target.name, opened)
            feed = None if order.stdin is None else order.stdin.feed()
            return run_command(connection, order.command, sink, stdin=feed, timeout=order.timeout)

    def ended(outcome: Outcome[int]) -> None:
        raise_broken_pipe(outcome)
        kept = outputs.kept.get(outcome.host)
        ending = HostRun(outcome.host, outcome.value, outcome.error, outcome.seconds, kept)
        runs[outcome.host] = ending
        on_end(ending)
        if order.fail_fast and ending.status != "ok":
            raise _Enough

    interrupted = False
    try:
        fleet.run(task, on_result=ended, timeout=None)
    except _Enough:
        pass
    except KeyboardInterrupt:
        interrupted = True
    outputs.close()
    hosts = [host.name for host in fleet.hosts]
    missing = {host: HostRun(host, output=outputs.kept.get(host)) for host in hosts}
    return RunSummary({**missing, **runs}, interrupted=interrupted)
