"""`mnt ssh-setup`: set up logins by key, from this machine to the hosts and between the hosts."""

from __future__ import annotations

from collections.abc import Mapping

import click

from mnt import keys, ui
from mnt.cli.options import Selection, json_option, selection_options
from mnt.errors import counted
from mnt.fleet.login.terminal import ask_secret
from mnt.inventory.hostlist import fold, sentences
from mnt.trust import identity as identities
from mnt.trust.identity import Identity
from mnt.trust.setup import Setup, set_up


@click.command("ssh-setup")
@selection_options
@json_option
@click.option(
    "--key", metavar="FILE", help="Private key to install; default: the inventory's, else ~/.ssh/id_ed25519."
)
@click.option("--no-mesh", is_flag=True, help="Install only your key; set up no logins between the hosts.")
@click.option("--dry-run", is_flag=True, help="Show the changes without making them; ask for no password.")
def ssh_setup(selection: Selection, as_json: bool, key: str | None, no_mesh: bool, dry_run: bool) -> int:
    """Install your key on the hosts, set up logins between them, and test both.

    If a host accepts no key of yours yet, your password is asked for: once for all such hosts. It is sent
    only to hosts whose host keys are known (`mnt trust`), and is not stored. Each node generates its own key,
    which never leaves the node.
    """
    named = key or identities.named(selection.hosts)
    head = _Key(named or identities.usual(), dry_run)
    done = set_up(
        selection.inventory.cluster,
        selection.hosts,
        head.get,
        chosen=named is not None,
        ask=_ask_password,
        nodes=not no_mesh,
        dry_run=dry_run,
    )
    if as_json:
        ui.document({"key": head.path, "dry_run": dry_run, **done.document()})
    else:
        _show(done, head, dry_run)
    return 0 if done.ok else 1


class _Key:
    """The head's key, which is made when it is first needed."""

    def __init__(self, path: str, dry_run: bool) -> None:
        self.path = path
        self._dry_run = dry_run
        self.loaded: Identity | None = None

    def get(self) -> Identity:
        """Raises UsageError if it cannot be read or made."""
        if self.loaded is None:
            self.loaded = identities.load(self.path) or self._make()
        return self.loaded

    def _make(self) -> Identity:
        if self._dry_run:
            ui.info(f"{self.path}: would be generated")
            return Identity(self.path, keys.generate().public, "")  # of the right form, for the hosts
        ui.info(f"{self.path}: generated")
        return identities.make(self.path)


def _ask_password(user: str, reasons: Mapping[str, str]) -> str | None:
    for text in sentences(reasons.items()):
        ui.info(text)
    return ask_secret(f"Password of {user} on {fold(list(reasons))}: ")


def _show(done: Setup, key: _Key, dry_run: bool) -> None:
    for name, changes in done.changes.items():
        for change in changes:
            ui.plain(f"{name}: {'would be ' if dry_run else ''}{change}")
    for error in done.errors.values():
        ui.error(error)
    for (one, other), login in done.mesh.items():
        if not login["ok"]:
            ui.failure(f"{one} cannot log in to {other}: {login['error']}")
    if done.ok and not dry_run:
        works = f"{counted(len(done.mesh), 'login')} between hosts work{'s' * (len(done.mesh) == 1)}"
        between = f", and {works}" if done.mesh else ""
        accept = f"accept{'s' * (len(done.changes) == 1)}"
        what = f"{accept} {key.path}" if key.loaded else f"already {accept} a key"
        ui.success(f"{counted(len(done.changes), 'host')} {what}{between}")
