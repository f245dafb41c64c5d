"""`mnt status`: the jobs on the hosts."""

from __future__ import annotations

import time

import click

from mnt import ui
from mnt.cli import completing
from mnt.cli.job_view import duration
from mnt.cli.jobs import found_jobs
from mnt.cli.options import Selection, json_option, selection_options
from mnt.errors import counted
from mnt.inventory.hostlist import brief
from mnt.launch.jobs import Job

_NEWEST = 20  # jobs that are shown unless more are asked for
_WIDEST = 50  # characters of a command in the table
_COLOURS = {
    "pending": "cyan",
    "starting": "cyan",
    "running": "cyan",
    "finished": "green",
    "failed": "red",
    "lost": "red",
    "stopped": "yellow",
    "unreachable": "red",
    "absent": "yellow",
    "unknown": "bright_black",
}


@click.command()
@selection_options
@json_option
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1),
    help=f"Only the N newest jobs; default: {_NEWEST}, with --json all.",
)
@click.argument("job", required=False, shell_complete=completing.jobs)
def status(selection: Selection, as_json: bool, limit: int | None, job: str | None) -> int:
    """Show the jobs on the hosts, newest first, or one JOB node by node.

    This includes your jobs of `mnt launch --via local` on this machine, with or without an inventory. JOB
    may be abbreviated.
    """
    with found_jobs(selection, job) as found:
        jobs = found.jobs if job is None else [found.named(job)]
    if as_json:
        ui.document({"jobs": [each.document(time.time()) for each in jobs[:limit]]})
    elif job is not None:
        _show_job(jobs[0])
    else:
        _show_jobs(jobs, limit or _NEWEST, found.where)
    return 0 if found.complete else 1


def _show_jobs(jobs: list[Job], limit: int, where: str) -> None:
    if not jobs:
        ui.info(f"there are no jobs on {where}; mnt launch starts one")
        return
    rows: list[list[str | ui.Cell]] = [
        [
            job.job,
            ui.Cell(job.state, _COLOURS[job.state]),
            job.record.backend,
            _nodes(job),
            _moment(job),
            duration(job.seconds(time.time())),
            _cut(job.command or ""),
            job.culprit.sentence() if job.culprit else "",
        ]
        for job in jobs[:limit]
    ]
    ui.table(["JOB", "STATE", "VIA", "NODES", "STARTED", "TOOK", "SCRIPT", "CULPRIT"], rows)
    if len(jobs) > limit:
        ui.info(f"and {counted(len(jobs) - limit, 'older job')}: mnt status --limit {len(jobs)}")


def _moment(job: Job) -> str:
    """When it was started; empty: unknown."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.created)) if job.created else ""


def _nodes(job: Job) -> str:
    """The hosts of a job, with the GPUs of those of which it has only some."""
    if not any(node.subset for node in job.nodes):
        return brief([node.host for node in job.nodes])
    return _cut(",".join(f"{node.host}:{node.subset}" if node.subset else node.host for node in job.nodes))


def _cut(command: str) -> str:
    return command if len(command) <= _WIDEST else f"{command[: _WIDEST - 3]}..."


def _show_job(job: Job) -> None:
    took = duration(job.seconds(time.time()))
    about = [
        f"job {job.job}: {job.state}",
        _moment(job) and f"started {_moment(job)}",
        took and f"{'runs for' if job.active else 'took'} {took}",
        f"via {job.record.backend}"
        + (f" (its job {job.record.outside_id})" if job.record.outside_id is not None else ""),
        job.engine,
        job.release and f"release {job.release}",
        job.master and f"master {job.master}",
    ]
    ui.plain(", ".join(filter(None, about)))
    if job.command:
        ui.plain(f"script: {job.command}")
    some = any(node.subset for node in job.nodes)
    rows: list[list[str | ui.Cell]] = [
        [
            node.host,
            str(node.node_rank),
            ui.Cell(node.state, _COLOURS[node.state]),
            "" if node.exit_code is None else str(node.exit_code),
            *([node.subset or "all"] if some else []),
            (node.entry["peer"] or "") if node.entry else "",
        ]
        for node in job.nodes
    ]
    ui.table(["HOST", "NODE RANK", "STATE", "EXIT CODE", *(["GPUS"] if some else []), "PEER LINK"], rows)
    if job.culprit:
        ui.plain(f"culprit: {job.culprit.sentence()}")
    for warning in job.warnings:
        ui.warn(warning)
