"""`mnt ssh-setup`: let you in on the hosts, and the hosts in on each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from mnt.cli.options import Selection, json_option, selection_options

if TYPE_CHECKING:
    from mnt.trust.identity import Identity
    from mnt.trust.setup import Setup


@click.command("ssh-setup")
@selection_options
@json_option
@click.option(
    "--key", metavar="FILE", help="Private key to install; default: the inventory's, else ~/.ssh/id_ed25519."
)
@click.option("--no-mesh", is_flag=True, help="Only let you in; the hosts get no key of their own.")
@click.option("--dry-run", is_flag=True, help="Show what would change; ask for no password.")
def ssh_setup(selection: Selection, as_json: bool, key: str | None, no_mesh: bool, dry_run: bool) -> int:
    """Install your key on the hosts, set up logins between them, and prove both.

    Hosts that let no key in yet are asked with your password: it is typed once, goes only to hosts whose keys
    are known (`mnt trust`), and is kept nowhere. Each node makes a key of its own, which never leaves it.
    """
    from mnt import ui
    from mnt.trust import identity as identities
    from mnt.trust.setup import set_up

    path = key or identities.choose(selection.hosts)
    identity = identities.load(path)
    if identity is None:
        identity = _new_key(path, dry_run)
    done = set_up(
        selection.inventory.cluster,
        selection.hosts,
        identity,
        ask=_ask_password,
        nodes=not no_mesh,
        dry_run=dry_run,
    )
    if as_json:
        ui.document({"key": identity.path, "dry_run": dry_run, **done.document()})
    else:
        _show(done, identity, dry_run)
    return 0 if done.ok else 1


def _new_key(path: str, dry_run: bool) -> Identity:
    from mnt import ui
    from mnt.trust import identity as identities

    if dry_run:
        ui.info(f"{path}: would be made")
        return identities.Identity(path, "ssh-ed25519 -", "")
    ui.info(f"{path}: made")
    return identities.make(path)


def _ask_password(user: str, hosts: Sequence[str], why: str) -> str | None:
    from mnt import ui
    from mnt.fleet.login.terminal import ask_secret
    from mnt.inventory.hostlist import fold

    ui.info(f"{fold(hosts)}: {why}")
    return ask_secret(f"Password of {user} on {fold(hosts)}: ")


def _show(done: Setup, identity: Identity, dry_run: bool) -> None:
    from mnt import ui
    from mnt.ui.console import clean

    for name, changes in done.changes.items():
        for change in changes:
            ui.plain(clean(f"{name}: {'would be ' if dry_run else ''}{change}"))
    for error in done.errors.values():
        ui.error(error)
    for (one, other), login in done.mesh.items():
        if not login["ok"]:
            ui.failure(f"{one} cannot log in to {other}: {login['error']}")
    if done.ok and not dry_run:
        between = f", and {len(done.mesh)} logins between hosts work" if done.mesh else ""
        ui.success(f"{len(done.changes)} hosts let {identity.path} in{between}")
