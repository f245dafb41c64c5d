"""What a shell offers after TAB: names of hosts, groups, inventories, checks, playbooks, jobs.

Nothing is asked of a host, and what cannot be read offers nothing: an error would be printed into the command
line that the user is typing. bash inserts an offer as it is, and a file name in somebody else's tree may be a
command: so a name is offered only if nothing in it means anything to a shell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import click

from mnt.errors import MntError
from mnt.inventory import find, loader
from mnt.inventory.model import Inventory

Complete = Callable[[click.Context, click.Parameter, str], list[str]]

_PLAIN = re.compile(r"[\w@][\w.@:+-]*", re.ASCII)


def _inventory(context: click.Context) -> Inventory:
    """The inventory of the command line so far."""
    name = context.params.get("inventory")
    return loader.load(find.locate(name), any_kind=False)


def _of(known: Callable[[click.Context], Iterable[str]], *, several: bool = False) -> Complete:
    """What `known` returns, as far as it goes on from what is typed.

    Args:
        several: a list with commas is typed; its last entry is completed.
    """

    def complete(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
        done, comma, last = typed.rpartition(",") if several else ("", "", typed)
        try:
            names = [name for name in known(context) if name.startswith(last)]
            return [done + comma + name for name in names if _PLAIN.fullmatch(name)]
        except (MntError, OSError):
            return []

    return complete


def _hosts(context: click.Context) -> list[str]:
    return list(_inventory(context).names())


def _hosts_and_groups(context: click.Context) -> list[str]:
    found = _inventory(context)
    return [*found.names(), *(f"@{group}" for group in found.groups)]


def _inventories(context: click.Context) -> list[str]:
    labs = [f"lab:{name}" for name in find.labs()]
    return [*find.named(), *labs]


def _checks(context: click.Context) -> list[str]:
    from mnt.preflight.registry import all_checks

    return [check.id for check in all_checks()]


def _playbooks(context: click.Context) -> list[str]:
    from mnt.setup.playbooks import PLAYBOOKS

    return [playbook.name for playbook in PLAYBOOKS]


def _jobs(context: click.Context) -> list[str]:
    from mnt.launch.seen import recall

    return recall()


hosts = _of(_hosts)
hostlists = _of(_hosts_and_groups, several=True)
inventories = _of(_inventories)
checks = _of(_checks, several=True)
playbooks = _of(_playbooks)
jobs = _of(_jobs)  # those that were seen last
