"""`mnt logs`: the output of a job."""

from __future__ import annotations

from typing import Any

import click

from mnt import ui
from mnt.cli.job_view import show_end
from mnt.cli.jobs import found_jobs
from mnt.cli.options import Selection, selection_options
from mnt.errors import UsageError
from mnt.fleet import HostConnection, raise_output_error
from mnt.inventory.hostlist import fold
from mnt.launch.bars import Bars
from mnt.launch.jobs import host_of_rank, named_job
from mnt.launch.watch import skipped
from mnt.tasks.job import JobEntry, read_logs


@click.command()
@selection_options
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the job ends.")
@click.option("--node", metavar="HOST", help="Only the output of this host.")
@click.option("--rank", type=click.IntRange(min=0), help="Only the output of this global rank.")
@click.option("--tail", metavar="N", type=click.IntRange(min=0), help="Only the last N lines of each host.")
@click.argument("job", required=False)
def logs(
    selection: Selection, follow: bool, node: str | None, rank: int | None, tail: int | None, job: str | None
) -> int:
    """Print what JOB (default: the newest job) has written so far.

    With -f, the exit code is that of the job, as with `mnt launch`.
    """
    with found_jobs(selection, job) as found:
        wanted = found.named(job)
        fleet = found.hosts.fleet_of(wanted)
        hosts = [member.host for member in wanted.nodes if member.entry is not None]
        if job is None:
            ui.note(f"job {wanted.job}, on {fold(hosts)}")
        if rank is not None:
            node = host_of_rank(wanted, rank)
        if node is not None:
            if node not in hosts:
                raise UsageError(
                    f"job {wanted.job} has no output on {node!r}", fix=f"name one of {', '.join(hosts)}"
                )
            hosts = [node]

        # A job that was not named may be one that a single host has invented.
        named = job is not None or node is not None or not found.hosts.several
        lines = ui.HostLines(hosts, prefix=len(hosts) > 1 or not named)
        bars = Bars(lines.feed, lines.live)
        feed = lines.feed if rank is not None else bars.feed

        def read(connection: HostConnection) -> JobEntry:
            host = connection.target

            def show(frame: dict[str, Any]) -> None:
                if "data" in frame:
                    feed(host.name, frame["data"])
                elif "skipped" in frame:
                    ui.note(skipped(host.name, wanted.job, frame["skipped"]))

            return read_logs(
                connection,
                host.jobs_dir,
                wanted.job,
                host.name,
                rank=rank,
                follow=follow,
                tail=tail,
                on_frame=show,
            )

        results = fleet.run_each(read, dict.fromkeys(hosts, ()), on_result=raise_output_error)
        bars.close()
        lines.close()
        ended = named_job(found.hosts.jobs(wanted.job)[0], wanted.job) if follow else None
    for error in results.errors().values():
        ui.error(error)
    if results.errors():
        return 1
    code = 0
    if ended is not None and ended.active:
        ui.note(f"job {ended.job} still runs on other nodes")
    elif ended is not None:
        code = show_end(ended)
    return code or (0 if found.complete else 1)
