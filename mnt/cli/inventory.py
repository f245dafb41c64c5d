"""`mnt inventory list` and `mnt inventory show`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import click
from msgspec import to_builtins

from mnt import ui
from mnt.cli.options import Selection, json_option, selection_options
from mnt.errors import UsageError, counted
from mnt.inventory import find, loader
from mnt.inventory.hints import unexpanded
from mnt.inventory.model import Host


@click.group()
def inventory() -> None:
    """List the inventories, or show the hosts of one."""


@inventory.command("list")
@json_option
def list_inventories(as_json: bool) -> None:
    """List the files in inventories/ and the running labs."""
    files = find.named() | {f"lab:{name}": file for name, file in find.labs().items()}
    try:
        default = find.locate(None)
    except UsageError as error:
        default = None
        ui.note(error.message)
    entries = [_entry(name, file, default=file == default) for name, file in files.items()]
    if as_json:
        ui.document({"inventories": entries})
        return
    ui.table(["NAME", "HOSTS", "CLUSTER", "FILE"], [_list_row(entry) for entry in entries])


@inventory.command()
@json_option
@selection_options
def show(selection: Selection, as_json: bool) -> None:
    """Show the hosts with their final settings, in rank order."""
    cluster, hosts = selection.inventory, selection.hosts
    if as_json:
        document = to_builtins(asdict(replace(cluster, hosts=())))
        del document["hosts"]
        del document["network"]["mode_by_option"]  # no setting of the file
        document["secrets"] = {name: each.kind for name, each in cluster.secrets.items()}
        ui.long_listing(document, "hosts", (to_builtins(asdict(host)) for host in hosts))
        return
    _hint(hosts)
    ui.info(f"{cluster.cluster}: {len(hosts)} of {counted(len(cluster.hosts), 'host')}, {cluster.file}")
    ui.table(
        ["HOST", "ADDRESS", "USER", "PYTHON", "GPUS", "NIC", "GROUPS"],
        [_host_row(host, cluster.groups_of(host.name)) for host in hosts],
    )


def _hint(hosts: Sequence[Host]) -> None:
    """Warn of values in `env` that look as if a shell should expand them."""
    for hint in unexpanded((host.name, host.env) for host in hosts):
        ui.warn(hint)


def _entry(name: str, file: str, *, default: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "file": file, "default": default}
    try:
        loaded = loader.load(find.own(file))
    except UsageError as error:
        return {**entry, "cluster": None, "hosts": None, "error": error.message}
    return {**entry, "cluster": loaded.cluster, "hosts": len(loaded.hosts), "error": None}


def _list_row(entry: dict[str, Any]) -> list[Any]:
    name = f"{entry['name']} (default)" if entry["default"] else entry["name"]
    if entry["error"]:
        return [name, "-", ui.Cell("not valid", "red"), ui.Cell(entry["error"], "red")]
    return [name, str(entry["hosts"]), entry["cluster"], entry["file"]]


def _host_row(host: Host, groups: list[str]) -> list[str]:
    return [
        host.name,
        _address(host),
        host.ssh.user or "-",
        " ".join(host.python),
        str(host.gpus),
        host.nic or "auto",
        ",".join(groups) or "-",
    ]


def _address(host: Host) -> str:
    if host.ssh.port is None:
        return host.address
    address = f"[{host.address}]" if ":" in host.address else host.address
    return f"{address}:{host.ssh.port}"
