"""Run one command on all hosts of a fleet, to its end or until it is cancelled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from mnt.fleet import Fleet, HostConnection, Outcome, raise_output_error
from mnt.run.feed import Feed, Source
from mnt.run.outputs import Outputs
from mnt.run.summary import HostRun, RunSummary
from mnt.tasks.command import run_command
from mnt.tasks.wrapper import Command


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
