"""From a YAML file to an `Inventory`; every error names file, line, key and value."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mnt.errors import InventoryError, UsageError
from mnt.inventory import document, hostlist, values
from mnt.inventory.document import Document, Location
from mnt.inventory.model import Host, Inventory, Mount, Network, Rdma, RequiredPath, Ssh, Tuning
from mnt.inventory.schema import UNKNOWN_KEY, HostSettings, InventoryFile, NodeNetworkSection

Groups = Mapping[str, tuple[str, ...]]

_EVERY_KEY = "docs/inventory.md and inventories/template.yaml show every key"
_ONCE = "name each host once; only a key of one host may refine a range that holds it"
# Paths on this machine: a relative one is meant from where the inventory lies.
_HEAD_PATHS = ("identity", "known_hosts", "config")
# Keys of `network` that a group or a host may have too.
_PER_HOST = tuple(NodeNetworkSection.model_fields)
# Of one connection (NCCL 2.30, net_socket); more are cut down with a warning only.
_NCCL_MAX_SOCKETS = 64


def load(file: str | os.PathLike[str]) -> Inventory:
    """Read, check and resolve an inventory.

    Raises:
        InventoryError: the file cannot be read, or something in it is wrong.
    """
    source = document.read(os.fspath(file))
    if not isinstance(source.root, dict):
        raise source.error((), f"expected a mapping, got {values.describe(source.root)}", fix=_EVERY_KEY)
    listed = isinstance(source.root.get("hosts"), list)
    if listed:
        source = _hosts_as_mapping(source)
    said = _validate(source)
    settings = _settings_by_host(source, said, refining=not listed)
    groups = _groups(source, said, known=list(settings))
    hosts = tuple(_host(source, said, name, groups, settings[name]) for name in settings)
    _check_addresses(source, hosts)
    return Inventory(
        cluster=said.cluster or Path(source.file).stem,
        file=source.file,
        hosts=hosts,
        groups=groups,
        network=Network(**said.network.given(without=_PER_HOST)),
        storage=tuple(Mount(**mount.given()) for mount in said.storage),
        paths=tuple(RequiredPath(**path.given()) for path in said.paths),
        require=said.require,
    )


def _hosts_as_mapping(source: Document) -> Document:
    """`hosts`, a plain list of hostlists, as the mapping that it is short for."""
    lines = dict(source.lines)
    mapping: dict[str, Any] = {}
    for i, item in enumerate(source.root["hosts"]):
        try:
            text = values.verbatim(item)
        except ValueError as error:
            fix = "settings need a mapping: hosts: {node1: {nic: eth0}}"
            raise source.error(("hosts", i), f"hosts[{i}]: {error}", fix=fix) from None
        if text in mapping:
            first = lines["hosts", text]
            message = f"hosts: {text} is named twice, first in line {first}"
            raise source.error(("hosts", i), message, fix=_ONCE)
        mapping[text] = {}
        lines["hosts", text] = source.line(("hosts", i))
    return replace(source, root=source.root | {"hosts": mapping}, lines=lines)


def _validate(source: Document) -> InventoryFile:
    try:
        return InventoryFile.model_validate(source.root)
    except ValidationError as failed:
        first = min(failed.errors(), key=lambda error: source.line(error["loc"]))
        raise _explain(source, first) from None


def _explain(source: Document, error: ErrorDetails) -> InventoryError:
    """What pydantic says, for a person."""
    location = tuple(part for part in error["loc"] if part != "[key]")
    context = error.get("ctx", {})
    if error["type"] == UNKNOWN_KEY:
        key = context["key"]
        message = f"unknown key {key!r}{_within(location)}{context['hint']}"
        return source.error((*location, key), message, fix=f"keys here: {context['keys']}")
    if error["type"] == "missing":
        message = f"the key {location[-1]!r} is missing{_within(location[:-1])}"
        return source.error(location, message, fix=_EVERY_KEY)
    problem = context.get("error", error["msg"])
    return source.error(location, f"{_dotted(location)}: {problem}", fix=_EVERY_KEY)


def _dotted(location: Location) -> str:
    """`storage[0].path`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")


def _within(location: Location) -> str:
    return f" in {_dotted(location)}" if location else ""


def _located(
    source: Document, location: Location, expand: Callable[..., list[str]], text: str, **known: Any
) -> list[str]:
    """What `expand` makes of the hostlist `text`; its errors get a place in the file."""
    try:
        return expand(text, **known)
    except UsageError as error:
        raise source.error(location, f"{_dotted(location[:1])}: {error.message}", fix=error.fix) from None


def _settings_by_host(
    source: Document, said: InventoryFile, *, refining: bool
) -> dict[str, list[HostSettings]]:
    """Each host, in the order in which the file first names it, with its settings, the strongest last.

    At most one range names a host, and, where `refining`, one key of its own beside it.
    """
    ranges: dict[str, str] = {}  # host -> the key that names it
    singles: dict[str, str] = {}
    settings: dict[str, list[HostSettings]] = {}
    for text in said.hosts:
        location = ("hosts", text)
        names = _located(source, location, hostlist.names, text)
        single = refining and len(names) == 1
        taken = singles if single else ranges
        for name in names:
            if name in taken:
                first = source.line(("hosts", taken[name]))
                message = f"hosts: {name} in {text!r} is named twice, first in line {first}"
                raise source.error(location, message, fix=_ONCE)
            taken[name] = text
            settings.setdefault(name, []).insert(1 if single else 0, said.hosts[text])
        if len(names) > 1 and said.hosts[text].address:
            message = f"hosts.{text}.address: several hosts cannot have one address"
            raise source.error((*location, "address"), message, fix="give each host a key of its own")
    if not settings:
        raise source.error(("hosts",), "hosts: there is no host", fix='hosts: ["node[1-4]"]')
    return settings


def _groups(source: Document, said: InventoryFile, known: list[str]) -> Groups:
    """Hosts by group. A group may hold groups that stand above it."""
    groups: dict[str, tuple[str, ...]] = {}
    for name, group in said.groups.items():
        at = ("groups", name, "hosts")
        if not hostlist.is_host_name(name):
            message = f"groups: {name!r} is not a name for a group"
            raise source.error(at, message, fix="letters, digits, '_', '.' and '-'")
        hosts = [
            host
            for text in group.hosts
            for host in _located(source, at, hostlist.expand, text, known=known, groups=groups)
        ]
        if not hosts:
            raise source.error(at, f"groups: {name} has no hosts", fix="take it out, or fill it")
        groups[name] = tuple(dict.fromkeys(hosts))
    return groups


def _host(source: Document, said: InventoryFile, name: str, groups: Groups, own: list[HostSettings]) -> Host:
    """One host's final settings: defaults < its groups, in the file's order < its range < its own key."""
    layers = [*(group for key, group in said.groups.items() if name in groups[key]), *own]
    settings = said.defaults.given(without=("env", "network"))
    ssh = said.ssh.given()
    env = said.env | said.defaults.env
    for layer in layers:
        settings |= layer.given(without=("env", "ssh", "hosts", "address", "network"))
        ssh |= layer.login()
        env |= layer.env
    address, _ = own[-1].address or (name, None)
    networks = [said.network, said.defaults.network, *(layer.network for layer in layers)]
    settings |= _network(source, name, networks)
    return Host(name=name, address=address, ssh=_ssh(source, ssh), env=env, **settings)


def _network(source: Document, host: str, layers: Iterable[NodeNetworkSection]) -> dict[str, Any]:
    """One host's `rdma`, `tuning` and `exclude`, from what is said of them, the strongest last."""
    rdma: dict[str, Any] = {}
    tuning: dict[str, Any] = {}
    exclude: tuple[str, ...] = ()
    for layer in layers:
        rdma |= layer.rdma.given()
        tuning |= layer.tuning.given()
        exclude = layer.given().get("exclude", exclude)
    threads, sockets = tuning.get("socket_nthreads") or 1, tuning.get("nsocks_perthread") or 1
    if threads * sockets > _NCCL_MAX_SOCKETS:
        message = f"network.tuning of {host}: {threads} threads of {sockets} sockets are {threads * sockets}"
        at = ("network", "tuning") if ("network", "tuning") in source.lines else ("hosts", host)
        raise source.error(at, message, fix=f"NCCL uses at most {_NCCL_MAX_SOCKETS} sockets a connection")
    return {"rdma": Rdma(**rdma), "tuning": Tuning(**tuning), "exclude": exclude}


def _ssh(source: Document, said: Mapping[str, Any]) -> Ssh:
    """`~` stays: it is whoever runs `mnt`."""
    beside = Path(source.file).absolute().parent
    paths = {
        key: str(beside / said[key])
        for key in _HEAD_PATHS
        if said.get(key) is not None and not said[key].startswith("~")
    }
    return Ssh(**{**said, **paths})


def _check_addresses(source: Document, hosts: tuple[Host, ...]) -> None:
    """Two names for one machine would be two ranks on it."""
    names: dict[tuple[str, int | None, str | None], str] = {}
    for host in hosts:
        endpoint = (host.address, host.ssh.port, host.ssh.gateway)
        if endpoint in names:
            message = f"hosts: {host.name} and {names[endpoint]} have the same address, {host.address}"
            raise source.error(("hosts", host.name), message, fix="give each host its own address")
        names[endpoint] = host.name
