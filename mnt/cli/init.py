"""`mnt init`: a first inventory, from the hosts themselves."""

from __future__ import annotations

import difflib
import shlex

import click

from mnt import ui
from mnt.errors import UsageError, counted
from mnt.fleet import Fleet
from mnt.fleet.login.terminal import agreed, ask
from mnt.init import first
from mnt.init.draft import Draft
from mnt.init.look import draft
from mnt.init.write import render
from mnt.inventory import find, hostlist, loader

_USUAL = f"{find.DIRECTORY}/{find.DEFAULT}.yaml"


@click.command()
@click.option(
    "-n",
    "--nodes",
    metavar="HOSTLIST",
    help="Hosts, as ssh knows them, like node[1-4]; those of FILE need not be named.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help=f"The inventory to write; default: {_USUAL}, here or in the nearest directory above that has it.",
)
@click.option("-u", "--user", metavar="NAME", help="The user to log in as; default: as ssh does.")
@click.option("--identity", metavar="KEY", help="The private key to log in with; default: as ssh does.")
@click.option("--ssh-config", metavar="FILE", help="The ssh_config to use; default: ~/.ssh/config.")
@click.option("-y", "--yes", is_flag=True, help="Write the file without asking.")
def init(
    nodes: str | None,
    output: str | None,
    user: str | None,
    identity: str | None,
    ssh_config: str | None,
    yes: bool,
) -> int:
    """Write an inventory: ask the hosts what they have, and give the reason for each value in a comment.

    The names are resolved as ssh does it. An existing FILE keeps its values, comments and order: only what it
    lacks is added. What would be written is shown before.

    A host that cannot be asked is written without settings and marked, and the exit code is 1. When it can be
    reached, `mnt init` adds what is missing.
    """
    file = output or f"{find.directory()}/{find.DEFAULT}.yaml"
    before = first.read(file, by_path=output is not None)
    known = loader.load(file) if before else None
    login = first.login(user, identity, ssh_config)
    if nodes is None and known is None:
        nodes = _ask_hosts()
    names = first.names(nodes) if nodes is not None else []
    inventory = first.planned(known, file, names, login)
    with Fleet(inventory.hosts) as fleet, ui.StatusLine() as status:
        found = draft(fleet, inventory, inventory.hosts, status.show)
    written = render(found, login, before)
    _show_notes(found, written.kept)
    if written.text == before:
        ui.info(f"{file}: nothing to add")
    else:
        _show_change(file, before, written.text)
        if not yes and not agreed(f"Write {file}?", otherwise=f"{file} is not written"):
            ui.info(f"{file}: nothing is written")
            return 1
        first.save(file, written.text)
        ui.success(f"{file}: written")
    lost = [entry.name for entry in found.hosts if entry.problem is not None]
    if lost:
        again = "mnt init" + (f" -o {shlex.quote(output)}" if output else "")
        ui.info(f"when {hostlist.brief(lost)} can be reached (mnt trust, mnt ssh-setup): {again} again")
    elif written.text != before:
        ui.info("next: mnt preflight" + (f" -i {shlex.quote(_as_path(output))}" if output else ""))
    return 1 if lost else 0


def _as_path(file: str) -> str:
    """As `-i` takes it for a path (`find.is_path`), and not for a name."""
    return file if find.is_path(file) else f"./{file}"


def _ask_hosts() -> str:
    """Raises UsageError if there is no terminal, or no answer."""
    answer = ask("Hosts (like node[1-4], or a,b): ")
    if not answer:
        raise UsageError("no hosts are named", fix="mnt init -n 'node[1-4]'")
    return answer


def _show_notes(found: Draft, kept: list[str]) -> None:
    reached = [entry for entry in found.hosts if entry.problem is None]
    ui.info(f"{len(reached)} of {counted(len(found.hosts), 'host')} answered")
    entries = {entry.name: entry for entry in found.hosts if entry.problem is not None}
    # By the fix too: a host can word its problem as that of another, and not give it a fix.
    for names in hostlist.group({name: (entry.problem, entry.fix) for name, entry in entries.items()}):
        first = entries[names[0]]
        ui.failure(f"{hostlist.fold(names)}: {first.problem}", first.fix)
    for text in kept:
        ui.warn(f"left as it is: {text}")
    for text in found.notes:
        ui.warn(text)


def _show_change(file: str, before: str | None, after: str) -> None:
    """A new file as it will be; else the difference."""
    if before is None:
        ui.lines(after.removesuffix("\n"))
        return
    for line in difflib.unified_diff(before.splitlines(), after.splitlines(), file, file, lineterm=""):
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        ui.plain(line, colour)
