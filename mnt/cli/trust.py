"""`mnt trust`: record the host keys of hosts after the user has checked them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import click

from mnt import ui
from mnt.cli import completing
from mnt.cli.options import Selection, json_option, selection_options
from mnt.errors import UsageError
from mnt.fleet.login.terminal import ask
from mnt.inventory import hostlist as hostlists
from mnt.trust import fingerprints
from mnt.trust.establish import establish
from mnt.trust.verdict import Verdict

_COLOURS = {"known": "green", "recorded": "green", "replaced": "green", "new": "yellow"}


@click.command()
@selection_options
@json_option
@click.argument("hostlist", required=False, shell_complete=completing.hostlists)
@click.option(
    "--yes", is_flag=True, help="Accept unknown keys without asking; this never accepts a changed key."
)
@click.option(
    "--fingerprints",
    "file",
    metavar="FILE",
    help="Accept only the keys in the administrator's list: lines HOST SHA256:...",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Also replace changed keys; you type the new fingerprint, or --fingerprints has it.",
)
def trust(
    selection: Selection, as_json: bool, hostlist: str | None, yes: bool, file: str | None, replace: bool
) -> int:
    """Scan the host keys of HOSTLIST (default: all hosts) and of their gateways, and record them.

    The fingerprints are shown. If you agree, the keys are recorded in the inventory's known_hosts. The exit
    code is 0 if all hosts are trusted, else 1.
    """
    if yes and replace and file is None:
        raise UsageError(
            "--yes does not replace a changed key",
            fix="use --replace --fingerprints FILE, or --replace on a terminal",
        )
    hosts = selection.hosts
    if hostlist is not None:
        named = {host.name for host in hostlists.select(selection.inventory, nodes=hostlist, exclude=None)}
        hosts = tuple(host for host in hosts if host.name in named)
    consent = partial(_accepted, yes=yes, vouched=file is not None, replace=replace, may_ask=not as_json)
    found = establish(
        hosts,
        listed=None if file is None else fingerprints.read(file),
        consent=consent,
        show=lambda wave: None if as_json else _show(wave),
    )
    ok = all(verdict.ok for verdict in found.values())
    if as_json:
        ui.document({"ok": ok, "hosts": {name: verdict.document() for name, verdict in found.items()}})
    else:
        _show_outcome(found)
    return 0 if ok else 1


def _accepted(
    verdicts: Mapping[str, Verdict], *, yes: bool, vouched: bool, replace: bool, may_ask: bool
) -> list[str]:
    """The hosts whose keys are accepted: by the options, or by asking at the terminal.

    Args:
        yes: accept unknown keys without asking.
        vouched: the administrator's list has already confirmed the keys.
        replace: also replace changed keys.
        may_ask: questions at the terminal are allowed.
    """

    def answer(question: str) -> str:
        return ask(question) if may_ask else ""

    def knows(name: str) -> bool:
        """Ask for the new fingerprint: the user must know it from the administrator, not from this screen."""
        typed = answer(f"{name}: the new fingerprint, from its administrator (empty: do not replace): ")
        return typed in {key.fingerprint for key in verdicts[name].record}

    new = [name for name, verdict in verdicts.items() if verdict.status == "new"]
    question = f"Are these right? Record the keys of {', '.join(new)} [y/N]: "
    if not (yes or vouched or (new and answer(question).lower() in ("y", "yes"))):
        new = []
    changed = [name for name, verdict in verdicts.items() if verdict.status == "changed" and replace]
    return new + [name for name in changed if vouched or knows(name)]


def _show(wave: Mapping[str, Verdict]) -> None:
    rows: list[list[str | ui.Cell]] = [
        [name, ui.Cell(verdict.status, _COLOURS.get(verdict.status, "red")), key.type, key.fingerprint]
        for name, verdict in wave.items()
        for key in verdict.shown
    ]
    if rows:
        ui.table(["HOST", "STATUS", "TYPE", "FINGERPRINT"], rows)


def _show_outcome(found: Mapping[str, Verdict]) -> None:
    for name, verdict in found.items():
        if not verdict.ok:
            ui.error(verdict.problem(name))
    recorded = [name for name, verdict in found.items() if verdict.status in ("recorded", "replaced")]
    if recorded:
        ui.success(f"recorded: {', '.join(recorded)}")
    if all(verdict.ok for verdict in found.values()):
        ui.success(f"{len(found)} trusted")
