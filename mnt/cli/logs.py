"""`mnt logs`: the output of a job."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from mnt import ui
from mnt.cli import completing
from mnt.cli.job_view import show_end
from mnt.cli.jobs import FoundJobs, found_jobs
from mnt.cli.options import Selection, selection_options
from mnt.errors import HostError, MntError, UsageError
from mnt.fleet import HostConnection, raise_output_error
from mnt.inventory.hostlist import fold
from mnt.launch import follow as following
from mnt.launch.bars import Bars
from mnt.launch.jobs import host_of_rank
from mnt.launch.watch import skipped
from mnt.tasks.job import JobEntry, read_logs


@click.command()
@selection_options
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the job ends.")
@click.option("--node", metavar="HOST", help="Only the output of this host.")
@click.option("--rank", type=click.IntRange(min=0), help="Only the output of this global rank.")
@click.option("--tail", metavar="N", type=click.IntRange(min=0), help="Only the last N lines of each host.")
@click.argument("job", required=False, shell_complete=completing.jobs)
def logs(
    selection: Selection, follow: bool, node: str | None, rank: int | None, tail: int | None, job: str | None
) -> int:
    """Print what JOB (default: the newest job) has written so far.

    With -f, the exit code is that of the job, as with `mnt launch`. JOB may be abbreviated.
    """
    with found_jobs(selection, job) as found:
        wanted = found.named(job)
        fleet = found.hosts.fleet_of(wanted)
        hosts = [member.host for member in wanted.nodes if member.entry is not None]
        if job != wanted.job:
            ui.note(f"job {wanted.job}, on {fold(hosts)}")
        if rank is not None:
            host = host_of_rank(wanted, rank)
            if node not in (None, host):
                raise UsageError(f"rank {rank} is on {host}, not on {node}", fix="leave out --node")
            node = host
        if node is not None:
            if node not in hosts:
                raise UsageError(
                    f"job {wanted.job} has no output on {node!r}", fix=f"name one of {', '.join(hosts)}"
                )
            hosts = [node]

        # A job that was not named in full may be one that a single host has invented.
        named = job == wanted.job or node is not None or not found.hosts.several
        lines = ui.HostLines(hosts, prefix=len(hosts) > 1 or not named)
        bars = Bars(lines.feed, lines.live)
        feed = lines.feed if rank is not None else bars.feed

        def read(connection: HostConnection) -> JobEntry:
            host = connection.target

            def show(frame: dict[str, Any]) -> None:
                if "data" in frame:
                    feed(host.name, frame["data"])
                elif "skipped" in frame:
                    ui.note(skipped(host.name, wanted.job, frame))

            if not follow:
                return read_logs(
                    connection, host.jobs_dir, wanted.job, host.name, rank=rank, tail=tail, on_frame=show
                )
            retry = partial(following.reach_again, tell=ui.note)
            return following.follow(
                connection, host.jobs_dir, wanted.job, show, retry=retry, rank=rank, tail=tail
            )

        results = fleet.run_each(read, dict.fromkeys(hosts, ()), on_result=raise_output_error)
        bars.close()
        lines.close()
        for error in results.errors().values():
            ui.error(error)
        code = _end(found, wanted.job, results.errors()) if follow else 0
    return code or (1 if results.errors() or not found.complete else 0)


def _end(found: FoundJobs, job: str, lost: Mapping[str, HostError]) -> int:
    """Ask all hosts again, and show how the job has ended; returns its exit code, 0 if it still runs.

    Args:
        lost: the hosts that could not be followed, of which this was said.

    Raises MntError if no host that answers has the job any more.
    """
    listing = found.hosts.jobs(job)
    for host, error in listing.errors.items():
        if host not in lost and host not in found.unasked:
            ui.warn(error.message)
    ended = next((each for each in listing.jobs if each.job == job), None)
    if ended is None:
        fix = f"its processes may still run: mnt stop {job} ends them"
        raise MntError(f"job {job}: no host that answers has it any more", fix=fix)
    if ended.active:
        ui.note(f"job {job} still runs" + ("" if lost else " on other nodes"))
        return 0
    return show_end(ended)
