"""`mnt rollback`: back to an earlier release."""

from __future__ import annotations

import re

import click

from mnt import ui
from mnt.cli import settle
from mnt.cli.options import Selection, json_option, selection_options
from mnt.cli.push_view import progress_shown, show_result
from mnt.errors import UsageError
from mnt.fleet import Fleet
from mnt.push import rollback as back
from mnt.remote.push.releases import RELEASE_ID


@click.command()
@selection_options
@json_option
@click.argument("release", metavar="[ID]", required=False)
def rollback(selection: Selection, as_json: bool, release: str | None) -> int:
    """Switch `current` to the release ID on every host, or on none.

    Without ID: to the release that was current before; a second rollback leads forward again. Nothing is sent
    or removed: the release must be on all hosts as it was pushed.
    """
    if release is not None:
        check_id(release)
    with Fleet(selection.hosts) as fleet, progress_shown() as progress:
        result = back.rollback(fleet, release, progress=progress)
        settle()
    if as_json:
        ui.document(result.document())
    else:
        show_result(result)
    return 0 if result.ok else 1


def check_id(release: str) -> None:
    """Raises UsageError if it is not the id of a release."""
    if not re.match(RELEASE_ID, release):
        raise UsageError(f"{release} is not the id of a release", fix="mnt releases lists them")
