"""`mnt hostfile`."""

from __future__ import annotations

import shlex

import click

from mnt import ui
from mnt.cli.options import Selection, selection_options, slots_option
from mnt.errors import UsageError, counted
from mnt.inventory import hostlist
from mnt.inventory import slots as selected
from mnt.inventory.exchange.hostfile import render, write


@click.command()
@click.option("-o", "--output", metavar="FILE", help="Write to FILE (atomically) instead of stdout.")
@click.option("--slots", type=click.IntRange(min=1), help="Processes per host; default: its `gpus`, or 1.")
@selection_options
@slots_option
def hostfile(selection: Selection, output: str | None, slots: int | None) -> None:
    """Write the hostfile that DeepSpeed reads: `node1 slots=8`, the master first.

    It has all slots of a host of which only some GPUs are selected: DeepSpeed selects them by --include.
    """
    beyond = [host.name for host in selection.hosts if slots and host.chosen and max(host.chosen) >= slots]
    if beyond:
        raise UsageError(
            f"--slots {slots}: a GPU is selected of {beyond[0]} beyond these", fix="remove --slots"
        )
    text = render(selection.hosts, slots)
    if output is None:
        ui.lines(text.removesuffix("\n"))
    else:
        write(output, text)
        ui.info(f"{output}: {counted(len(selection.hosts), 'host')}")
    if any(host.chosen is not None for host in selection.hosts):
        include = selected.written({host.name: host.chosen for host in selection.hosts}, "@")
        ui.note(f"a hostfile has no numbers of GPUs: deepspeed --include {shlex.quote(include)}")
    elsewhere = [host.name for host in selection.hosts if host.address != host.name]
    if elsewhere:
        names = hostlist.fold(elsewhere)
        ui.note(f"{names}: DeepSpeed logs in by name, so /etc/hosts or ~/.ssh/config must have the addresses")
