"""`mnt logs`: a job's output."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from mnt import ui
from mnt.cli.jobs import found_jobs
from mnt.cli.options import Selection, selection_options
from mnt.errors import UsageError
from mnt.launch.jobs import host_of_rank, named_job


@click.command()
@selection_options
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is over.")
@click.option("--node", metavar="HOST", help="Only the output of this host.")
@click.option("--rank", type=click.IntRange(min=0), help="Only the output of this global rank.")
@click.argument("job", required=False)
def logs(selection: Selection, follow: bool, node: str | None, rank: int | None, job: str | None) -> int:
    """Print what JOB (default: the newest) has written so far."""
    from mnt.fleet import raise_broken_pipe
    from mnt.tasks.job import read_logs

    with found_jobs(selection) as found:
        wanted = named_job(found.jobs, job)
        fleet = found.hosts.fleet_of(wanted)
        hosts = [member.host for member in wanted.nodes if member.entry is not None]
        if node is not None and node not in hosts:
            raise UsageError(
                f"job {wanted.job} has no output on {node!r}", fix=f"it has on: {', '.join(hosts)}"
            )
        if node is not None:
            hosts = [node]
        if rank is not None:
            hosts = [host_of_rank(wanted, rank)]

        lines = ui.HostLines(hosts, prefix=len(hosts) > 1)

        def reader(host: str) -> Any:
            return partial(
                read_logs,
                rank=rank,
                follow=follow,
                on_frame=lambda frame: lines.feed(host, frame["data"]) if "data" in frame else None,
            )

        readers = {host: reader(host) for host in hosts}
        results = fleet.run_each(
            lambda connection, *args: readers[connection.target.name](connection, *args),
            {host: (fleet.host(host).jobs_dir, wanted.job, host) for host in hosts},
            on_result=raise_broken_pipe,
        )
        lines.close()
    for error in results.errors().values():
        ui.error(error)
    return 0 if found.complete and not results.errors() else 1
