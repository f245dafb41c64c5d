"""`mnt hostfile`."""

from __future__ import annotations

import click

from mnt import ui
from mnt.cli.options import Selection, selection_options
from mnt.errors import counted
from mnt.inventory import hostlist
from mnt.inventory.exchange.hostfile import render, write


@click.command()
@click.option("-o", "--output", metavar="FILE", help="Write to FILE (atomically) instead of stdout.")
@click.option("--slots", type=click.IntRange(min=1), help="Processes per host; default: its `gpus`, or 1.")
@selection_options
def hostfile(selection: Selection, output: str | None, slots: int | None) -> None:
    """Write the hostfile that DeepSpeed reads: `node1 slots=8`, the master first."""
    text = render(selection.hosts, slots)
    if output is None:
        ui.lines(text.removesuffix("\n"))
    else:
        write(output, text)
        ui.info(f"{output}: {counted(len(selection.hosts), 'host')}")
    elsewhere = [host.name for host in selection.hosts if host.address != host.name]
    if elsewhere:
        names = hostlist.fold(elsewhere)
        ui.note(f"{names}: DeepSpeed logs in by name, so /etc/hosts or ~/.ssh/config must have the addresses")
