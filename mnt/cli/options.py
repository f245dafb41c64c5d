"""Options that several commands share, and what they resolve to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from mnt.inventory.model import Host, Inventory

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Selection:
    """The inventory, and the hosts of it that the command is about, in the user's order."""

    inventory: Inventory
    hosts: tuple[Host, ...]


def selection_options(command: F) -> F:
    """Add -i, -n and -x; the command receives `selection: Selection`."""

    @click.option(
        "-i", "--inventory", metavar="NAME|PATH", help="Inventory: a name in inventories/, a file, lab."
    )
    @click.option(
        "-n", "--nodes", metavar="HOSTLIST", help="Only these hosts, in this order: node[1-4], @group."
    )
    @click.option("-x", "--exclude", metavar="HOSTLIST", help="Leave these hosts out.")
    @functools.wraps(command)
    def wrapper(
        *args: Any, inventory: str | None, nodes: str | None, exclude: str | None, **kwargs: Any
    ) -> Any:
        from mnt.inventory import find, hostlist, loader
        from mnt.run import failed

        loaded = loader.load(find.locate(inventory))
        chosen = hostlist.select(
            loaded, nodes=nodes, exclude=exclude, last_failed=lambda: failed.recall(loaded.file)
        )
        return command(*args, selection=Selection(loaded, chosen), **kwargs)

    return wrapper  # type: ignore[return-value]


grace_option = click.option(
    "--grace", type=click.FloatRange(min=0), default=10, help="Seconds between TERM and KILL; default 10."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout, and nothing else there."
)
