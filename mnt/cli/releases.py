"""`mnt releases`: what is in the workdirs of the hosts; `mnt releases prune` removes some of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from rich import filesize

from mnt import ui
from mnt.cli import settle
from mnt.cli.options import Selection, json_option, selection_options
from mnt.cli.push_view import foreign_files, progress_shown
from mnt.cli.rollback import check_id
from mnt.errors import HostError, UsageError
from mnt.fleet import Fleet
from mnt.inventory.hostlist import fold, sentences
from mnt.push import prune as pruning
from mnt.push.change import KEEP
from mnt.push.origin import pushed_by
from mnt.push.prune import Pruned
from mnt.push.result import WHY_LEFT
from mnt.tasks.push import Listed, ListedRelease, list_releases


@click.group(invoke_without_command=True)
@selection_options
@json_option
@click.pass_context
def releases(context: click.Context, selection: Selection, as_json: bool) -> int:
    """List the releases on the hosts: size, what uses them, and what jobs have written into them."""
    if context.invoked_subcommand is not None:
        if selection.options or as_json:
            raise UsageError("options come after the subcommand", fix="mnt releases prune OPTIONS")
        return 0
    with Fleet(selection.hosts) as fleet:
        found = fleet.run(list_releases)
    listed, errors = found.values_by_host(), found.errors()
    if as_json:
        ui.document({"ok": not errors, "hosts": dict(_documents(listed, errors))})
    else:
        _show(listed)
        for error in errors.values():
            ui.error(error)
    return 1 if errors else 0


def _documents(
    listed: Mapping[str, Listed], errors: Mapping[str, HostError]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for host, found in listed.items():
        yield host, {**found}
    for host, error in errors.items():
        yield host, {"error": error.reason, **({"fix": error.advice} if error.advice else {})}


def _show(listed: Mapping[str, Listed]) -> None:
    rows = [
        [
            host,
            release["release"],
            filesize.decimal(release["bytes"]),
            pushed_by(release["pushed"]) if release["pushed"] else "-",
            _state(release, found),
            _foreign(release),
        ]
        for host, found in listed.items()
        for release in found["releases"]
    ]
    if rows:
        ui.table(["HOST", "RELEASE", "SIZE", "PUSHED BY", "USE", "WRITTEN BY JOBS"], rows)
    empty = [host for host, found in listed.items() if not found["releases"]]
    if empty:
        ui.info(f"{fold(empty)}: no releases; mnt push makes one")


def _state(release: ListedRelease, found: Listed) -> str:
    """What a release is for, and what uses it."""
    roles = [role for role in ("current", "previous") if found[role] == release["release"]]
    jobs = {use["job"]: None for use in release["uses"] if use["job"]}
    others = [f"pid {use['pid']} ({use['command']})" for use in release["uses"] if not use["job"]]
    return ", ".join([*roles, *(f"job {job}" for job in jobs), *others]) or "-"


def _foreign(release: ListedRelease) -> str:
    return foreign_files(release["foreign"]) if release["foreign"]["files"] else "-"


@releases.command()
@selection_options
@json_option
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=KEEP,
    show_default=True,
    help="How many of the newest releases stay, if no ID is given.",
)
@click.option("--with-results", is_flag=True, help="Also remove what jobs have written into these releases.")
@click.option("--dry-run", is_flag=True, help="List what would be removed; remove nothing.")
@click.argument("ids", metavar="[ID..]", nargs=-1)
def prune(
    selection: Selection,
    as_json: bool,
    keep: int,
    with_results: bool,
    dry_run: bool,
    ids: tuple[str, ...],
) -> int:
    """Remove old releases, or those with these IDs, from every host.

    The current release, the previous one, and those in use on one of the hosts always stay. A release that
    contains files that no push has brought (results, logs) is removed only with --with-results.
    """
    for release in ids:
        check_id(release)
    with Fleet(selection.hosts) as fleet, progress_shown() as progress:
        result = pruning.prune(
            fleet, ids, keep=keep, with_results=with_results, dry_run=dry_run, progress=progress
        )
        settle()
    ok = not any(host.error for host in result.values()) and not _kept(ids, result)
    if as_json:
        hosts = {host: pruned.document() for host, pruned in result.items()}
        ui.document({"ok": ok, "dry_run": dry_run, "hosts": hosts})
    else:
        _show_pruned(result, dry_run)
    return 0 if ok else 1


def _kept(ids: Sequence[str], result: Mapping[str, Pruned]) -> bool:
    """Whether one of the named releases is left on a host, or was on none."""
    left = [each for pruned in result.values() for each in pruned.left]
    removed = {release for pruned in result.values() for release in pruned.removed}
    return any(each.why != "absent" for each in left if ids) or not set(ids) <= removed


def _show_pruned(result: Mapping[str, Pruned], dry_run: bool) -> None:
    said = sentences((host, text) for host, pruned in result.items() for text in _outcome(pruned, dry_run))
    for text in said:
        ui.plain(text)
    for host, pruned in result.items():
        if pruned.error is not None:
            ui.failure(f"{host}: {pruned.error}", pruned.fix)
    if not said and not any(pruned.error for pruned in result.values()):
        ui.info("there is nothing to remove")


def _outcome(pruned: Pruned, dry_run: bool) -> Iterator[str]:
    """What was removed from a host, and what was not, for people."""
    for release in pruned.removed:
        yield f"{release}: {'would be removed' if dry_run else 'removed'}"
    for left in pruned.left:
        what = f" ({foreign_files(left.foreign)}); --with-results removes it" if left.foreign else ""
        yield f"{left.release}: stays, because it {WHY_LEFT[left.why]}{what}"
    if pruned.shares_with:
        yield f"shares the workdir of {pruned.shares_with}"
