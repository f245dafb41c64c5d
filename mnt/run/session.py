"""One command on all hosts of a fleet, to its end or until it is called off."""

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
from mnt.run.report import HostRun, RunReport
from mnt.tasks.command import Sink, run_command
from mnt.tasks.wrapper import Command


@dataclass(frozen=True)
class Order:
    """What is to be done on each host.

    `stdin` goes to every host; `timeout` is in seconds, for the command on one host; `fail_fast` ends it
    everywhere as soon as one host is not ok.
    """

    command: Command
    stdin: Source | None = None
    timeout: float | None = None
    fail_fast: bool = False


class Outputs:
    """Where the hosts' output goes.

    Args:
        live: shows it as it comes.
        keep: keep it for the report.
        directory: write it to files too.
    """

    def __init__(self, *, live: Live | None, keep: bool, directory: Path | None = None) -> None:
        self._live = live
        self._keep = keep
        self._directory = directory
        self._gates: dict[str, _Gate] = {}
        self.kept: dict[str, Capture] = {}

    def open(self, host: str, opened: ExitStack) -> Sink:
        """The sink of a host that was reached; `opened` closes what it needs. Raises OSError."""
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
        """Nothing is taken any more: a host that was given up may still be talking."""
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
    """A host has failed, and the others need not go on."""


def run(fleet: Fleet, order: Order, outputs: Outputs, on_end: Callable[[HostRun], None]) -> RunReport:
    """Run the command on every host.

    Args:
        on_end: told of each host as it ends.

    An interrupt ends it on all hosts, and is told by the report. Raises BrokenPipeError where the reader of
    this process's output is gone.
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
        fleet.run(task, on_result=ended)
    except _Enough:
        pass
    except KeyboardInterrupt:
        interrupted = True
    outputs.close()
    hosts = [host.name for host in fleet.hosts]
    missing = {host: HostRun(host, output=outputs.kept.get(host)) for host in hosts}
    return RunReport({**missing, **runs}, interrupted=interrupted)
