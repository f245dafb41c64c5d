"""`mnt stop`: stop jobs on all their hosts, and verify that no process is left."""

from __future__ import annotations

import re
from typing import Any

import click

from mnt import ui
from mnt.cli import completing
from mnt.cli.jobs import FoundJobs, job_hosts, look_for_jobs
from mnt.cli.options import Selection, grace_option, json_option, selection_options
from mnt.errors import MntError, UsageError
from mnt.launch.jobs import JOB_ID, Job, jobs_to_stop, may_be_a_job
from mnt.launch.stop import result_of_named, stop_jobs, stop_named, withdraw


@click.command()
@selection_options
@json_option
@click.option("--all", "everything", is_flag=True, help="Stop all your jobs that may still run.")
@grace_option
@click.argument("job", required=False, shell_complete=completing.jobs)
def stop(selection: Selection, as_json: bool, everything: bool, grace: float, job: str | None) -> int:
    """Stop JOB on all its nodes (default: the only running job).

    Every process of the job gets SIGTERM, and SIGKILL after the grace period. The command succeeds only if
    every node has verified that no process of the job is left. JOB may be abbreviated.
    """
    if job is not None and everything:
        raise UsageError("--all and JOB exclude each other", fix="mnt stop JOB, or mnt stop --all")
    with job_hosts(selection, all_of_them=job is None) as (hosts, decided):
        short = job is not None and may_be_a_job(job) and not re.match(JOB_ID, job)
        outcomes = {} if job is None or short else stop_named(hosts, job, grace=grace)
        found = look_for_jobs(hosts, job, decided=decided)
        for each in found.jobs:
            if each.job == job:
                withdraw(each, hosts.hosts)
        result = None if job is None or short else result_of_named(job, outcomes, found.jobs)
        if result is None:
            wanted = jobs_to_stop(found.jobs, everything=everything) if job is None else [_meant(found, job)]
            result = stop_jobs(hosts, wanted, grace=grace)
    ok = result.ok and found.complete
    if as_json:
        ui.document({**result.document(), "ok": ok})
        return 0 if ok else 1
    if not result.jobs:
        ui.info("nothing to stop: no job runs" + ("" if found.complete else f" on {found.where}"))
    for stopped in result.jobs:
        ui.info(f"job {stopped.job}:")
        for host, document in stopped.hosts.items():
            show_stopped(host, document)
    return 0 if ok else 1


def _meant(found: FoundJobs, named: str) -> Job:
    """The job with that id. An abbreviation may mean another job, of a host that did not answer.

    Raises MntError, as `FoundJobs.named`.
    """
    job = found.named(named)
    if job.job != named:
        if not found.complete:
            raise MntError(
                f"{named!r} is {job.job} on {found.where}, and may be another job elsewhere",
                fix=f"name it in full: mnt stop {job.job}",
            )
        ui.note(f"stopping job {job.job}")
    return job


def show_stopped(host: str, document: dict[str, Any]) -> None:
    """Print the result of a stop on one host."""
    if document["status"] == "unreachable":
        ui.failure(f"  {host}: not stopped: {document['message']}")
        return
    port = "master port free" if document["port_free"] else "master port still taken"
    if document["status"] == "left":
        pids = ", ".join(map(str, document["left"]))
        ui.failure(f"  {host}: not stopped: processes {pids} are still there; {port}")
        return
    if "message" in document:
        ui.info(f"  {host}: {document['message']}; {port}")
        return
    killed = document["killed"]
    ui.info(f"  {host}: stopped, {killed} process{'es' * (killed != 1)} ended; {port}")
