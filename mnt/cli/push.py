"""`mnt push`: send the code tree to every host."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from mnt import ui
from mnt.cli import settle
from mnt.cli.options import Selection, json_option, selection_options
from mnt.cli.push_view import Code, note_large, progress_shown, show_notices, show_result, show_tree
from mnt.fleet import Fleet
from mnt.inventory import find
from mnt.inventory.model import Host, Inventory
from mnt.push import manifest as manifests
from mnt.push import transfer
from mnt.push.change import KEEP
from mnt.push.notices import notices
from mnt.push.result import PushResult
from mnt.push.tree import printable, walk


@click.command()
@selection_options
@json_option
@click.option("--dry-run", is_flag=True, help="List what would be sent; connect to no host.")
@click.option(
    "--keep-releases",
    type=click.IntRange(min=1),
    default=KEEP,
    show_default=True,
    help="How many releases to keep on a host.",
)
@click.option("--allow-secrets", is_flag=True, help="Also send private keys.")
@click.argument("source", metavar="[SRC]", default=".", type=click.Path(path_type=str))
def push(
    selection: Selection,
    as_json: bool,
    dry_run: bool,
    keep_releases: int,
    allow_secrets: bool,
    source: str,
) -> int:
    """Send the tree SRC (default: this directory) to every host as a new release.

    Files that .gitignore or .mntignore name are not sent, and neither is .git. `current` is switched only
    after every host has verified the release, so a push that fails changes no host. Private keys are sent
    only with --allow-secrets.
    """
    if source == ".":
        warn_of_part(selection.inventory)
    code = read_tree(source)
    if dry_run:
        refused = transfer.refusal(selection.hosts, code.root, code.manifest, allow_secrets=allow_secrets)
        show_tree(code, [host.name for host in selection.hosts], refused, as_json)
        return refused.exit_code if refused else 0
    result = push_tree(
        code, selection.hosts, keep_releases=keep_releases, allow_secrets=allow_secrets, on_done=settle
    )
    if as_json:
        ui.document({**result.document(), "notices": [notice.document() for notice in code.notices]})
    else:
        show_result(result)
    return 0 if result.ok else 1


def warn_of_part(inventory: Inventory) -> None:
    """Warn if the current directory, which is pushed, is only a part of the tree that has the inventory."""
    whole = find.project_above(inventory.file)
    if whole is not None:
        here = shlex.quote(printable(str(Path.cwd().relative_to(whole))))
        ui.warn(f"this is a push of {here} only, not of all of {printable(whole)}, which has the inventory")
        ui.info(f"  to push all: cd {shlex.quote(whole)} && mnt push")


def read_tree(source: str) -> Code:
    """The tree to push, and what is in it; warns of what is left out. Raises as `walk` and `build`."""
    tree = walk(source)
    for note in tree.notes:
        ui.warn(note)
    note_large(tree.entries)
    manifest = manifests.build(tree)
    return Code(tree.root, manifest, tuple(notices(manifest.entries)))


def push_tree(
    code: Code,
    hosts: Sequence[Host],
    *,
    keep_releases: int = KEEP,
    allow_secrets: bool = False,
    on_done: Callable[[], object] = lambda: None,
) -> PushResult:
    """Push a tree, and show each step; then call `on_done`.

    Raises as `transfer.push`.
    """
    show_notices(code)
    with Fleet(hosts) as fleet, progress_shown() as progress:
        result = transfer.push(
            fleet,
            code.root,
            code.manifest,
            keep_releases=keep_releases,
            allow_secrets=allow_secrets,
            progress=progress,
        )
        on_done()
    return result
