"""Run one command on all hosts of a fleet, to its end or until it is cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from mnt.fleet import Fleet, HostConnection, Outcome, raise_output_error
from mnt.run import outdir
from mnt.run.capture import Capture
from mnt.run.feed import Feed, Source
from mnt.run.summary import HostRun, RunSummary
from mnt.tasks.command import Sink, run_command
from mnt.tasks.wrapper import Command
from mnt.ui import HostLines

# Takes pieces of stdout, and of stderr.
Writers = tuple[Callable[[bytes], object], Callable[[bytes], object]]


class Outputs:
    """The destinations of the hosts' output.

    Args:
        live: show stdout and stderr of all hosts immediately, on these.
        keep: keep it for the summary.
        directory: also write it to files there.
    """

    def __init__(
        self, *, live: tuple[HostLines, HostLines] | None, keep: bool, directory: Path | None = None
    ) -> None:
        self._live = live
        self._keep = keep
        self._directory = directory
        self._gates: dict[str, _Gate] = {}
        self.kept: dict[str, Capture] = {}

    def open(self, host: str, opened: ExitStack) -> Sink:
        """The sink of a host that was reached; `opened` closes its files. Raises OSError."""
        writers: list[Writers] = []
        if self._live is not None:
            out, err = self._live
            writers.append((partial(out.feed, host), partial(err.feed, host)))
        if self._keep:
            kept = self.kept[host] = Capture()
            writers.append((kept.stdout, kept.stderr))
        if self._directory is not None:
            stdout, stderr = outdir.create(self._directory, host, opened)
            writers.append((stdout.write, stderr.write))
        gate = self._gates[host] = _Gate(writers)
        return gate

    def close(self) -> None:
        """Show incomplete last lines. Further output, which a host that was given up may send, is ignored."""
        for gate in list(self._gates.values()):
            gate.close()
        for lines in self._live or ():
            lines.close()


class _Gate:
    """A sink that passes a host's output on, until it is closed."""

    def __init__(self, writers: list[Writers]) -> None:
        self._writers = writers
        self._lock = threading.Lock()

    def stdout(self, data: bytes) -> None:
        with self._lock:
            for write, _ in self._writers:
                write(data)

    def stderr(self, data: bytes) -> None:
        with self._lock:
            for _, write in self._writers:
                write(data)

    def close(self) -> None:
        with self._lock:
            self._writers = []


class _Enough(Exception):
    """A host has failed, so the other hosts stop."""


def run(
    fleet: Fleet,
    command: Command,
    outputs: Outputs,
    on_end: Callable[[HostRun], None],
    *,
    stdin: Source | None = None,
    timeout: float | None = None,
    fail_fast: bool = False,
) -> RunSummary:
    """Run the command on every host.

    Args:
        on_end: is called with each host as it ends.
        stdin: is sent to every host.
        timeout: seconds for the command on one host.
        fail_fast: end the command on all hosts as soon as one host is not ok.

    An interrupt ends the command on all hosts, and the summary says so. Raises BrokenPipeError if the reader
    of this process's output is gone.
    """
    runs: dict[str, HostRun] = {}

    def task(connection: HostConnection) -> int:
        with ExitStack() as opened:
            sink = outputs.open(connection.target.name, opened)
            feed = None if stdin is None else Feed(stdin)
            return run_command(connection, command, sink, stdin=feed, timeout=timeout)

    def ended(outcome: Outcome[int]) -> None:
        raise_output_error(outcome)
        kept = outputs.kept.get(outcome.host)
        ending = HostRun(outcome.host, outcome.value, outcome.error, outcome.seconds, kept)
        runs[outcome.host] = ending
        on_end(ending)
        if fail_fast and ending.status != "ok":
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
    return RunSummary({**missing, **runs}, interrupted=interrupted)
