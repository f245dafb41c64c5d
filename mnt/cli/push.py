"""`mnt push`: send the code tree to every host."""

from __future__ import annotations

import click
from rich import filesize

from mnt import ui
from mnt.cli.options import Selection, json_option, selection_options
from mnt.cli.push_view import progress_shown, show_result
from mnt.fleet import Fleet
from mnt.push import manifest as manifests
from mnt.push import transfer
from mnt.push.manifest import Manifest
from mnt.push.tree import printable, walk


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
    with Fleet(selection.hosts, fanout=len(selection.hosts)) as fleet, progress_shown() as progress:
        result = transfer.push(fleet, tree.root, manifest, keep_releases=keep_releases, progress=progress)
    if as_json:
        ui.document(result.document())
    else:
        show_result(result)
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
    ui.info(f"{manifest.files} files, {filesize.decimal(manifest.size)}, to {len(hosts)} hosts")
