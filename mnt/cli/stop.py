"""`mnt stop`: end jobs everywhere, and prove it."""

from __future__ import annotations

from typing import Any

import click

from mnt import ui
from mnt.cli.jobs import found_jobs
from mnt.cli.options import Selection, grace_option, json_option, selection_options
from mnt.errors import UsageError
from mnt.launch.jobs import jobs_to_stop


@click.command()
@selection_options
@json_option
@click.option("--all", "everything", is_flag=True, help="Every job of yours that may still run.")
@grace_option
@click.argument("job", required=False)
def stop(selection: Selection, as_json: bool, everything: bool, grace: float, job: str | None) -> int:
    """End JOB on all its nodes; without JOB the only one that runs.

    Each process of the job gets a TERM, and a KILL after the grace period. The answer is yes only when every
    node has shown that no process of the job is left.
    """
    from mnt.launch.stop import stop_jobs

    if job is not None and everything:
        raise UsageError("--all and a job were given", fix="mnt stop JOB, or mnt stop --all")
    with found_jobs(selection, all_of_them=job is None) as found:
        document = stop_jobs(found.hosts, jobs_to_stop(found.jobs, job, everything=everything), grace=grace)
    document["ok"] = document["ok"] and found.complete
    if as_json:
        ui.document(document)
    elif not document["jobs"]:
        ui.info("nothing to stop: no job runs" + ("" if found.complete else " on the hosts that answered"))
    for stopped in document["jobs"] if not as_json else ():
        ui.info(f"job {stopped['job']}:")
        for host, each in stopped["hosts"].items():
            show_stopped(host, each)
    return 0 if document["ok"] else 1


def show_stopped(host: str, document: dict[str, Any]) -> None:
    """What became of a job on one host."""
    from mnt.launch.stop import describe

    say = ui.info if document["status"] == "stopped" else ui.failure
    say(f"  {describe(host, document)}")
