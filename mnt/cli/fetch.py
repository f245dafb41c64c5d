"""`mnt fetch`: bring back what a job wrote, or any files of the hosts."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence

import click
from rich import filesize

from mnt import ui
from mnt.cli import completing
from mnt.cli.jobs import FoundJobs, found_jobs
from mnt.cli.options import Selection, json_option, selection_options
from mnt.errors import MntError, OutputError, UsageError, counted
from mnt.fetch import fetch as fetching
from mnt.fetch.fetch import Fetched, Options, Progress
from mnt.fetch.places import JOB_PLACES, conflict, pattern_of, place_of
from mnt.fleet import Fleet
from mnt.inventory.hostlist import fold, sentences
from mnt.launch.jobs import JOB_ID, Job, SeveralJobs, may_be_a_job
from mnt.remote.common.owners import unnamed_status
from mnt.remote.common.refusal import Refused
from mnt.tasks.fetch import Pattern, Wanted

_DIRECTORY = "fetched"
_SHOWN = 5  # files of a host that are named
_COLOURS = {"fetched": "green", "there": "green", "shared": "green", "nothing": "yellow"}


@click.command()
@selection_options
@json_option
@click.option(
    "--to",
    metavar="DIR",
    type=click.Path(),
    help="Where to write, one directory a host; default: fetched/JOB, or fetched.",
)
@click.option("--force", is_flag=True, help="Overwrite files that were changed here.")
@click.option("--dry-run", is_flag=True, help="Only say how much there is; write nothing.")
@click.argument("what", metavar="[JOB | PATH..]", nargs=-1, shell_complete=completing.jobs)
def fetch(
    selection: Selection, as_json: bool, to: str | None, force: bool, dry_run: bool, what: tuple[str, ...]
) -> int:
    """Bring back what JOB (default: the newest job) has written since its start, or the files at PATHs.

    Of a job: what is new in its release, what is new in shared/, and its logs. A relative PATH is in the
    current release; it may have *, ? and [..], quoted. What is here already is not sent again, so run it
    again after an interrupt. Links are not followed. JOB may be abbreviated; ./PATH is no job.
    """
    named, patterns = _job_among(what), _patterns(what)
    with _chosen(selection, named, paths=bool(what)) as (job, fleet, hosts, complete):
        default = os.path.join(_DIRECTORY, job.job) if job else _DIRECTORY
        directory = default if to is None else to
        wanted = Wanted(
            job.job if job else None, () if job else tuple(patterns), _left_out_of(job, to, hosts)
        )
        prefixes = JOB_PLACES if job else tuple(place_of(each) for each in patterns)
        names = JOB_PLACES if job else what
        if to is None and not dry_run:
            _make_default()
        with ui.transfer_bar() as bar:

            class Shown(Progress):
                def total(self, files: int, size: int) -> None:
                    ui.note(f"{counted(files, 'file')}, {filesize.decimal(size)}")
                    bar.expect(0 if dry_run else size)

                def arrived(self, count: int) -> None:
                    bar.advance(count)

            asked = dict.fromkeys(hosts, wanted)
            options = Options(force, dry_run, shared=to is not None)
            results = fetching.fetch(fleet, asked, prefixes, names, directory, options, Shown())
    nowhere = [] if job else _nowhere(what, results)
    ok = complete and all(result.ok for result in results.values()) and not nowhere
    if as_json:
        ui.document(
            {
                "ok": ok,
                "job": job and job.job,
                "to": directory,
                "dry_run": dry_run,
                "hosts": {host: result.document() for host, result in results.items()},
            }
        )
    else:
        _show(results, directory, dry_run)
    for path in nowhere:
        ui.failure(f"no host has {path}")
    return 0 if ok else 1


def _job_among(what: tuple[str, ...]) -> str | None:
    """The job that may be named; None: PATHs are, or nothing is. Raises UsageError."""
    named = [each for each in what if re.match(JOB_ID, each)]
    if named and len(what) > 1:
        raise UsageError(f"{named[0]} is a job, with other arguments", fix=f"mnt fetch {named[0]}")
    return what[0] if len(what) == 1 and may_be_a_job(what[0]) else None


def _patterns(paths: tuple[str, ...]) -> list[Pattern]:
    """Raises UsageError."""
    patterns = [pattern_of(path) for path in paths]
    double = conflict(patterns)
    if double is not None:
        raise UsageError(f"two paths lead to the same place here: {double}", fix="fetch them one by one")
    return patterns


@contextlib.contextmanager
def _chosen(
    selection: Selection, named: str | None, *, paths: bool
) -> Iterator[tuple[Job | None, Fleet, list[str], bool]]:
    """The job that is meant (None: paths), a fleet of its hosts, their names, and whether these are all.

    Args:
        named: a job that may be named.
        paths: whether there are arguments, which are paths if there is no such job.
    """
    if named is not None or not paths:
        with found_jobs(selection, named) as found:
            job = _meant(found, named)
            if job is not None:
                hosts = [member.host for member in job.nodes if member.entry is not None]
                if not hosts:
                    raise MntError(f"job {job.job}: no host has its files", fix=f"mnt status {job.job}")
                running = ", which still runs: its files may change" if job.active else ""
                ui.note(f"job {job.job}, on {fold(hosts)}{running}")
                yield job, found.hosts.fleet_of(job), hosts, found.complete
                return
    with Fleet(selection.hosts) as fleet:
        yield None, fleet, [host.name for host in selection.hosts], True


def _meant(found: FoundJobs, named: str | None) -> Job | None:
    """The job with that id (None: the newest), which may be abbreviated; None: no job, but a path.

    Raises MntError, as `FoundJobs.named`.
    """
    try:
        return found.named(named)
    except SeveralJobs as error:
        raise SeveralJobs(error.message, fix=f"{error.fix}; or, for the path: mnt fetch ./{named}") from None
    except MntError:
        if named is None or re.match(JOB_ID, named):
            raise
        return None


def _left_out_of(job: Job | None, to: str | None, hosts: Sequence[str]) -> str | None:
    """The directory that is no part of a job of this machine, which ran here: what was fetched before."""
    if job is None or job.record.backend != "local":
        return None
    if to is None:
        _is_there()  # first: what another user has mounted might never answer
    return os.path.realpath(_DIRECTORY if to is None else os.path.join(to, hosts[0]))


def _is_there() -> bool:
    """Whether there is a default directory. Raises UsageError if another user has mounted it."""
    try:
        found = unnamed_status(_DIRECTORY)
    except Refused as refusal:
        raise UsageError(
            f"{_DIRECTORY}/ is not looked at: {refusal.message}", fix=f"{refusal.fix}; or name one: --to DIR"
        ) from None
    return found is not None and stat.S_ISDIR(found.st_mode)


def _make_default() -> None:
    """Make it, which git and `mnt push` leave out. Raises as `_is_there`, and OutputError."""
    if _is_there():
        return
    try:
        os.mkdir(_DIRECTORY, 0o700)
        ui.write_file(os.path.join(_DIRECTORY, ".gitignore"), "*\n")
    except OSError as error:
        raise OutputError(
            f"{_DIRECTORY}: it cannot be made: {error.strerror}", fix="name one: --to DIR"
        ) from None


def _nowhere(what: tuple[str, ...], results: Mapping[str, Fetched]) -> list[str]:
    """The paths that every host lacks of those that answered."""
    answered = [result for result in results.values() if result.error is None]
    return [path for path in what if answered and all(path in result.absent for result in answered)]


def _show(results: Mapping[str, Fetched], directory: str, dry_run: bool) -> None:
    rows = [
        (
            host,
            ui.Cell(result.status, _COLOURS.get(result.status, "red")),
            str(result.files),
            filesize.decimal(result.bytes),
            str(result.already),
            f"{result.seconds:.1f} s",
        )
        for host, result in results.items()
    ]
    ui.table(("HOST", "STATUS", "FILES", "BYTES", "ALREADY HERE", "TOOK"), rows)
    for text in sentences((host, text) for host, result in results.items() for text in _remarks(result)):
        ui.warn(text)
    for host, result in results.items():
        for place, why in list(result.failed.items())[:_SHOWN]:
            ui.failure(f"{host}: {place}: {why}")
        if result.failed.count > _SHOWN:
            ui.failure(f"{host}: .. and {result.failed.count - _SHOWN} more files: --json lists them")
        if result.error is not None:
            ui.failure(f"{host}: {result.error}", result.fix)
    files = sum(result.files for result in results.values())
    size = filesize.decimal(sum(result.bytes for result in results.values()))
    if dry_run:
        ui.info(f"{counted(files, 'file')}, {size}, would go to {directory}")
    elif files or any(result.already for result in results.values()):
        ui.success(f"{counted(files, 'file')}, {size}, fetched to {directory}/HOST")
    else:
        ui.info("nothing was fetched")


def _remarks(result: Fetched) -> Iterator[str]:
    """What a person should know of a host's result, without what failed."""
    if result.shared_with:
        yield f"the same files as on {fold(result.shared_with)}, and fetched from there"
    if result.absent:
        yield f"nothing at {', '.join(result.absent)}"
    if result.later:
        yield f"{counted(result.later, 'file')} left, written after the job's end: those of another job?"
    if result.changed:
        places = _some(list(result.changed), result.changed.count)
        yield f"{places} changed while being read: fetch again when the job has ended"
    by_reason: dict[str, list[str]] = {}
    for place, why in result.left_out.items():
        by_reason.setdefault(why, []).append(place)
    shown = dict(list(by_reason.items())[:_SHOWN])
    for why, names in shown.items():
        yield f"{_some(names, len(names))} left out: {why}"
    more = result.left_out.count - sum(map(len, shown.values()))
    if more:
        yield f"{counted(more, 'more file')} left out: --json lists them"


def _some(places: list[str], count: int) -> str:
    more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
    return ", ".join(places[:_SHOWN]) + more
