"""Options that several commands share, and their values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import click

from mnt.cli import completing
from mnt.errors import UsageError
from mnt.inventory import find, hostlist, loader, slots
from mnt.inventory.model import Host, Inventory
from mnt.run import failed

F = TypeVar("F", bound=Callable[..., Any])


class Selection:
    """The inventory, and the selected hosts in the user's order.

    Both are loaded at their first use, which raises UsageError and InventoryError.
    """

    def __init__(self, inventory: str | None, nodes: str | None, exclude: str | None) -> None:
        self._name, self._nodes, self._exclude = inventory, nodes, exclude
        self.mode: str | None = None  # `--mode`, of commands that have `mode_option`
        self.takes_slots = False  # whether -n and -x may name GPUs: commands that have `slots_option`
        self.include: str | None = None  # `--include` of these

    @property
    def options(self) -> list[str]:
        """The given options: some of -i, -n, -x, --include and --mode."""
        given = {"-i": self._name, "-n": self._nodes, "-x": self._exclude}
        given |= {"--include": self.include, "--mode": self.mode}
        return [option for option, value in given.items() if value is not None]

    @cached_property
    def inventory(self) -> Inventory:
        loaded = loader.load(find.locate(self._name), any_kind=find.is_path(self._name))
        if self.mode is None:
            return loaded
        return replace(loaded, network=replace(loaded.network, mode=self.mode, mode_by_option=True))

    @cached_property
    def hosts(self) -> tuple[Host, ...]:
        loaded = self.inventory
        nodes, exclude, include = self._nodes, self._exclude, self.include
        if self.takes_slots and (include is not None or slots.has_slots(nodes) or slots.has_slots(exclude)):
            if include is not None and nodes is not None:
                raise UsageError("--include and -n both select hosts", fix="remove one of them")
            groups = hostlist.groups_for(
                loaded, f"{nodes},{include},{exclude}", lambda: failed.recall(loaded.file)
            )
            return slots.select(loaded, nodes=nodes, exclude=exclude, include=include, groups=groups)
        return hostlist.select(
            loaded, nodes=nodes, exclude=exclude, last_failed=lambda: failed.recall(loaded.file)
        )


def selection_options(command: F) -> F:
    """Add -i, -n and -x; the command receives `selection: Selection`."""

    @click.option(
        "-i",
        "--inventory",
        metavar="NAME|PATH",
        shell_complete=completing.inventories,
        help="Inventory: NAME in inventories/, PATH, or lab[:NAME].",
    )
    @click.option(
        "-n",
        "--nodes",
        metavar="HOSTLIST",
        shell_complete=completing.hostlists,
        help="Only these hosts, in this order: node[1-4], @group.",
    )
    @click.option(
        "-x",
        "--exclude",
        metavar="HOSTLIST",
        shell_complete=completing.hostlists,
        help="Exclude these hosts.",
    )
    @functools.wraps(command)
    def wrapper(
        *args: Any, inventory: str | None, nodes: str | None, exclude: str | None, **kwargs: Any
    ) -> Any:
        return command(*args, selection=Selection(inventory, nodes, exclude), **kwargs)

    return wrapper  # type: ignore[return-value]


def slots_option(command: F) -> F:
    """Add --include to a command with `selection_options` above it; its -n and -x may name GPUs too."""

    @click.option(
        "--include",
        metavar="NODE[:GPU,..][@..]",
        help="As -n, in DeepSpeed's form; -x takes this form too. With -n: node1:0,1,node2.",
    )
    @functools.wraps(command)
    def wrapper(*args: Any, selection: Selection, include: str | None, **kwargs: Any) -> Any:
        selection.include, selection.takes_slots = include, True
        return command(*args, selection=selection, **kwargs)

    return wrapper  # type: ignore[return-value]


def mode_option(command: F) -> F:
    """Add --mode to a command that has `selection_options` above it: the selected inventory has this mode."""

    @click.option(
        "--mode",
        type=click.Choice(["tcp", "rdma", "auto"]),
        help="Network of the job, instead of network.mode of the inventory.",
    )
    @functools.wraps(command)
    def wrapper(*args: Any, selection: Selection, mode: str | None, **kwargs: Any) -> Any:
        selection.mode = mode
        return command(*args, selection=selection, **kwargs)

    return wrapper  # type: ignore[return-value]


grace_option = click.option(
    "--grace", type=click.FloatRange(min=0), default=10, help="Seconds between TERM and KILL; default: 10."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document to stdout, and nothing else."
)


# What mnt tells sbatch itself.
_OWN_WORDS = (
    "--array",
    "--export",
    "--job-name",
    "--nodelist",
    "--nodes",
    "--ntasks",
    "--parsable",
    "--wrap",
)


def slurm_options(command: F) -> F:
    """Add the options of `--via slurm`.

    The command receives `count`, `array`, and `submit`: the words for sbatch.
    """
    only = "With --via slurm:"

    @click.option("--count", type=click.IntRange(min=1), help=f"{only} so many of the hosts, as it chooses.")
    @click.option("--partition", metavar="NAME", help=f"{only} the partition.")
    @click.option("--account", metavar="NAME", help=f"{only} the account.")
    @click.option("--time", metavar="TIME", help=f"{only} the time limit, as in 2:00:00.")
    @click.option("--gres", metavar="LIST", help=f"{only} GPUs of each host, as in gpu:8.")
    @click.option("--array", type=click.IntRange(1, 1000), help=f"{only} so many jobs.")
    @click.option(
        "--sbatch", "words", multiple=True, metavar="WORD", help=f"{only} another option of sbatch."
    )
    @functools.wraps(command)
    def wrapper(*args: Any, words: tuple[str, ...], **options: Any) -> Any:
        named = {name: options.pop(name) for name in ("partition", "account", "time", "gres")}
        given = [f"--{name}={value}" for name, value in named.items() if value is not None]
        for word in words:
            if word.startswith(_OWN_WORDS):
                raise UsageError(
                    f"--sbatch={word}: mnt sets this itself",
                    fix="remove it; see -n, --count and --array",
                )
        return command(*args, submit=(*given, *words), **options)

    return wrapper  # type: ignore[return-value]
