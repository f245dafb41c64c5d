"""`mnt push`: send the code tree to every host."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import click
from rich import filesize

from mnt import ui
from mnt.cli.options import Selection, json_option, selection_options
from mnt.errors import counted
from mnt.fleet import Fleet
from mnt.push import manifest as manifests
from mnt.push import transfer
from mnt.push.manifest import Manifest
from mnt.push.result import STATUSES, PushResult
from mnt.push.session import Progress
from mnt.push.tree import printable, walk

_STEPS = {
    "connect": "connecting to the hosts",
    "survey": "checking their releases",
    "switch": "switching current",
    "prune": "removing old releases",
}
_COLOURS = {"pushed": "green", "unchanged": "green", "untouched": "yellow"}


@click.command()
@selection_options
@json_option
@click.option("--dry-run", is_flag=True, help="List what would be sent; connect to no host.")
@click.option(
    "--keep-releases",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How many releases to keep on a host.",
)
@click.argument("source", metavar="[SRC]", default=".", type=click.Path(path_type=str))
def push(selection: Selection, as_json: bool, dry_run: bool, keep_releases: int, source: str) -> int:
    """Send the tree SRC (default: this directory) to every host as a new release.

    Files that .gitignore or .mntignore name are not sent, and neither is .git. `current` is switched only
    after every host has verified the release, so a push that fails changes no host.
    """
    tree = walk(source)
    for note in tree.notes:
        ui.warn(note)
    manifest = manifests.build(tree)
    transfer.check_kept(selection.hosts, manifest)
    if dry_run:
        _show_tree(manifest, [host.name for host in selection.hosts], as_json)
        return 0
    with Fleet(selection.hosts, fanout=len(selection.hosts)) as fleet, _progress() as progress:
        result = transfer.push(fleet, tree.root, manifest, keep_releases=keep_releases, progress=progress)
    if as_json:
        ui.document(result.document())
    else:
        _show_result(result)
    return 0 if result.ok else 1


def _show_tree(manifest: Manifest, hosts: list[str], as_json: bool) -> None:
    entries = [entry for entry in manifest.entries if entry.path]
    if as_json:
        rows = [{"path": entry.path, "kind": entry.kind, "size": entry.size} for entry in entries]
        ui.document(
            {
                "ok": True,
                "release": None,
                "entries": rows,
                "bytes": manifest.size,
                "hosts": dict.fromkeys(hosts),
            }
        )
        return
    for entry in entries:
        ui.plain(printable(entry.path) + ("/" if entry.kind == "dir" else ""))
    size = filesize.decimal(manifest.size)
    ui.info(f"{counted(manifest.files, 'file')}, {size}, to {counted(len(hosts), 'host')}")


def _show_result(result: PushResult) -> None:
    rows = [
        (
            name,
            ui.Cell(host.status, _COLOURS.get(host.status, "red")),
            str(host.files_sent),
            filesize.decimal(host.bytes_sent),
            f"{host.seconds:.1f} s",
            host.current or "-",
        )
        for name, host in result.hosts.items()
    ]
    ui.table(("HOST", "STATUS", "FILES SENT", "BYTES SENT", "TOOK", "CURRENT"), rows)
    for name, host in result.hosts.items():
        if host.error is not None:
            ui.failure(f"{name}: {host.error}")
            if host.fix:
                ui.failure(f"  fix: {host.fix}")
    if result.ok:
        ui.success(f"release {result.release} is current on {counted(len(result.hosts), 'host')}")
        return
    for status in dict.fromkeys(host.status for host in result.hosts.values()):
        ui.info(f"{status}: {STATUSES[status]}")
    ui.failure(
        "the hosts may have different current releases: see the table, and push again"
        if result.mixed
        else "no host was changed"
    )


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """Print each step as it begins, and on a terminal show a progress bar."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=None, visible=False)

        class Shown(Progress):
            def step(self, step: str, size: int) -> None:
                sending = f"sending {filesize.decimal(size)}" if size else "nothing to send"
                ui.note(_STEPS.get(step, sending))
                bar.update(task, total=size, visible=size > 0)

            def sent(self, count: int) -> None:
                bar.advance(task, count)

        yield Shown()
