"""Turn a YAML file into an `Inventory`; every error names file, line, key and value."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from mnt import typed
from mnt.errors import InventoryError, UsageError
from mnt.inventory import document, hostlist, kinds, playbook_variables
from mnt.inventory.document import Document
from mnt.inventory.model import Inventory
from mnt.inventory.schema import GroupSettings, InventoryFile, NodeNetworkSection
from mnt.inventory.spelling import did_you_mean
from mnt.inventory.values import Address, ShellLines, is_host_name, is_variable_name
from mnt.typed import Location, Misfit, dotted

Groups = Mapping[str, tuple[str, ...]]
Plain = dict[str, Any]
T = TypeVar("T")

_EVERY_KEY = "see docs/inventory.md and inventories/template.yaml for every key"
_EVERY_VARIABLE = "correct it; docs/setup.md has the variables of each playbook"
_MAPPING = "for settings write a mapping: hosts: {node1: {nic: eth0}}"
_ORIGIN = "expected {file: PATH}, {env: NAME} or {command: [PROGRAM, ARG..]}"
_NO_VALUE = "write where the value comes from, never the value itself"
_ONCE = "name each host once; only the key of a single host may refine a range that contains it"
_SEVERAL = "split it into several inventories"
_MOST_MEMBERS = 300_000  # of all groups together
_MOST_SETTINGS = 2_000_000  # of all hosts together; a host has some 20
_CHARACTERS = 100  # of a text, for each of which it counts as another setting
# Paths on this machine; relative ones start at the inventory's directory.
_HEAD_PATHS = ("identity", "known_hosts", "config")
# Keys of `network` that a group or a host may have too.
_PER_HOST = NodeNetworkSection.__struct_fields__
# Per connection (NCCL 2.30, net_socket); NCCL reduces a higher number with only a warning.
_NCCL_MAX_SOCKETS = 64


def load(file: str | os.PathLike[str], *, any_kind: bool = False) -> Inventory:
    """Read, check and resolve an inventory.

    Args:
        any_kind: it may be a pipe or a device, which may block: for a file that is named by its path.

    Raises:
        InventoryError: the file cannot be read, or is not valid.
    """
    source = document.read(os.fspath(file), any_kind=any_kind)
    if not isinstance(source.root, dict):
        raise source.error((), f"expected a mapping, got {document.describe(source.root)}", fix=_EVERY_KEY)
    plain = kinds.plain(source.root, kinds.at(()))
    try:
        parsed: InventoryFile = typed.convert(plain, InventoryFile, lambda kind, value: kind(value))
    except Misfit as misfit:
        raise _explain(source, plain, misfit) from None
    _check_setup(source, parsed)
    entries = _entries(source, parsed)
    groups = _groups(source, parsed, known=entries)
    layers = _layers(plain, groups, entries)
    _check_size(source, layers)
    places = _places(groups, entries)
    beside = Path(source.file).absolute().parent
    resolved = {
        "cluster": parsed.cluster or Path(source.file).stem,
        "file": source.file,
        "hosts": [_host(source, beside, name, layers[name], places[name]) for name in entries],
        "groups": groups,
        "secrets": _secrets(source, parsed),
    }
    inventory: Inventory = typed.convert(plain | resolved, Inventory)
    _check_sockets(source, inventory, entries)
    _check_addresses(source, inventory, entries)
    return inventory


def _explain(source: Document, plain: Plain, misfit: Misfit) -> InventoryError:
    """The error for a value that does not fit."""
    location = misfit.location
    if location[:1] == ("secrets",):
        return _explain_secret(source, location)
    value: Any = plain
    for part in location:
        value = value[part]
    kind = kinds.at(location)
    if misfit.of_hook:
        problem = misfit.problem
    elif misfit.of_key:
        problem = kinds.key_problem(str(location[-1]), kinds.at(location[:-1]))
    elif isinstance(value, dict) and (keys := kinds.keys(kind)):
        within = f" in {dotted(location)}" if location else ""
        for key in value:
            if key not in keys:
                message = f"unknown key {key!r}{within}{did_you_mean(key, keys)}"
                return source.error((*location, key), message, fix=f"keys here: {', '.join(keys)}")
        missing = next(key for key, required in keys.items() if required and key not in value)
        return source.error(location, f"the key {missing!r} is missing{within}", fix=_EVERY_KEY)
    else:
        problem = kinds.problem(value, kind)
    in_list = len(location) == 2 and location[0] == "hosts" and isinstance(plain["hosts"], list)
    return source.error(location, f"{dotted(location)}: {problem}", fix=_MAPPING if in_list else _EVERY_KEY)


def _explain_secret(source: Document, location: Location) -> InventoryError:
    """The same for a secret, without any text that may be its value."""
    if len(location) == 1:
        return source.error(location, "secrets: expected a mapping, like {NAME: {file: PATH}}", fix=_NO_VALUE)
    if not is_variable_name(str(location[1])):
        message = "secrets: this key is not a name for an environment variable"
        return source.error(location[:2], message, fix="write NAME: {file: PATH}")
    return source.error(location, f"{dotted(location[:2])}: {_ORIGIN}", fix=_NO_VALUE)


def _secrets(source: Document, parsed: InventoryFile) -> dict[str, Plain]:
    """Where the secrets come from, by the names of mnt.inventory.model.SecretSource."""
    for location in source.lines if parsed.secrets else ():
        section, name = location[:-1], location[-1]
        of_node = len(section) == 3 and section[0] in ("groups", "hosts") and section[2] == "env"
        if name in parsed.secrets and (of_node or section in (("env",), ("defaults", "env"))):
            message = f"secrets.{name}: {dotted(location)}, in line {source.line(location)}, sets it too"
            raise source.error(("secrets", str(name)), message, fix="remove one of them")
    beside = Path(source.file).absolute().parent
    secrets: dict[str, Plain] = {}
    for name, secret in parsed.secrets.items():
        file = secret.file
        if file is not None and not file.startswith("~"):
            file = str(beside / file)
        line = source.line(("secrets", name))
        secrets[name] = {"file": file, "env": secret.env, "command": secret.command, "line": line}
    return secrets


def _check_setup(source: Document, parsed: InventoryFile) -> None:
    for name, value in parsed.setup.items():
        problem = playbook_variables.unknown(name)
        if problem is not None:
            message = f"unknown key {name!r} in setup: {problem}"
            raise source.error(("setup", name), message, fix=_EVERY_VARIABLE)
        problem = playbook_variables.misfit(name, value)
        if problem is not None:
            raise source.error(("setup", name), f"setup.{name}: {problem}", fix=_EVERY_VARIABLE)


def _located(source: Document, location: Location, question: Callable[..., T], *args: Any, **known: Any) -> T:
    """The answer to a question about hostlists; its errors get a place in the file."""
    try:
        return question(*args, **known)
    except UsageError as error:
        raise source.error(location, f"{location[0]}: {error.message}", fix=error.fix) from None


def _entries(source: Document, parsed: InventoryFile) -> dict[str, list[Location]]:
    """Each host, in the order of the file, with the places that name it, the strongest last.

    At most one range names a host, and, in a mapping, also one key of its own.
    """
    ranges: dict[str, Location] = {}
    singles: dict[str, Location] = {}
    entries: dict[str, list[Location]] = {}
    for index, text in enumerate(parsed.hosts):
        location = ("hosts", text if isinstance(parsed.hosts, dict) else index)
        names = _located(source, location, hostlist.names, text)
        if len(entries) + len(names) > hostlist.MAX_HOSTS:
            message = f"hosts: more than {hostlist.MAX_HOSTS} hosts"
            raise source.error(location, message, fix=_SEVERAL)
        single = isinstance(parsed.hosts, dict) and len(names) == 1
        taken = singles if single else ranges
        for name in names:
            if name in taken:
                what = name if name == text else f"{name} in {text!r}"
                message = f"hosts: {what} is named twice, first in line {source.line(taken[name])}"
                raise source.error(location, message, fix=_ONCE)
            taken[name] = location
            entries.setdefault(name, []).insert(1 if single else 0, location)
        if len(names) > 1 and isinstance(parsed.hosts, dict) and parsed.hosts[text].address:
            message = f"hosts.{text}.address: several hosts cannot have one address"
            raise source.error((*location, "address"), message, fix="give each host a key of its own")
    if not entries:
        raise source.error(("hosts",), "hosts: there is no host", fix='add hosts, like hosts: ["node[1-4]"]')
    return entries


def _groups(source: Document, parsed: InventoryFile, known: Collection[str]) -> Groups:
    """Hosts by group. A group may contain groups that are defined above it."""
    total = 0
    groups: dict[str, tuple[str, ...]] = {}
    for name, group in parsed.groups.items():
        at = ("groups", name, "hosts")
        if not is_host_name(name):
            message = f"groups: {name!r} is not a name for a group"
            raise source.error(at, message, fix="use letters, digits, '_', '.' and '-'")
        hostlists = group.hosts if isinstance(group, GroupSettings) else group
        hosts: list[str] = []
        for text in [hostlists] if isinstance(hostlists, str) else hostlists:
            found = _located(source, at, hostlist.names, text, groups=groups)
            _located(source, at, hostlist.check_known, found, known=known)
            hosts += found
            total += len(found)
            if total > _MOST_MEMBERS:
                message = f"groups: all groups together have more than {_MOST_MEMBERS} hosts"
                raise source.error(at, message, fix=_SEVERAL)
        if not hosts:
            raise source.error(at, f"groups: {name} has no hosts", fix="remove it, or add hosts")
        groups[name] = tuple(dict.fromkeys(hosts))
    return groups


def _places(groups: Groups, entries: Mapping[str, list[Location]]) -> dict[str, list[Location]]:
    """Where the file may have settings for each host, from weak to strong."""
    places: dict[str, list[Location]] = {name: [(), ("defaults",)] for name in entries}
    for group, hosts in groups.items():
        for name in hosts:
            places[name].append(("groups", group))
    for name, locations in entries.items():
        places[name] += locations
    return places


def _host(source: Document, beside: Path, name: str, layers: list[Plain], places: list[Location]) -> Plain:
    """One host's final settings, by the names of mnt.inventory.model.Host.

    Args:
        beside: where relative paths start.
        places: see `_places`.
    """
    settings: Plain = {"address": name}
    for layer in layers:
        settings = _merged(settings, layer)
    network = settings.pop("network", {})
    settings |= {key: network[key] for key in _PER_HOST if key in network}
    if isinstance(settings.get("python"), str):
        settings["python"] = [settings["python"]]
    if "activate" in settings:
        settings["activate"] = ShellLines(settings["activate"])
    settings["own_slots"] = settings.pop("slots", None)
    ssh = settings.get("ssh", {})
    paths = {
        key: os.path.join(beside, ssh[key])
        for key in _HEAD_PATHS
        if not (ssh.get(key) or "~").startswith("~")
    }
    ssh = ssh | paths  # `~` stays: the home of the user who runs `mnt`
    if ssh.get("identity"):
        identities = [at for place in places if (at := (*place, "ssh", "identity")) in source.lines]
        if identities:
            ssh["named_at"] = (ssh["identity"], f"{source.file}:{source.line(identities[-1])}")
    return settings | {"name": name, "ssh": ssh}


def _layers(plain: Plain, groups: Groups, entries: Mapping[str, list[Location]]) -> dict[str, list[Plain]]:
    """The settings in the file for each host, from weak to strong."""
    cluster = {key: plain[key] for key in ("ssh", "env", "network") if key in plain}
    layers = {name: [cluster, plain.get("defaults", {})] for name in entries}
    for group, hosts in groups.items():
        if isinstance(plain["groups"][group], dict):
            for name in hosts:
                layers[name].append(plain["groups"][group])
    for name, locations in entries.items():
        for _, key in locations:
            if isinstance(key, str):
                layers[name].append(plain["hosts"][key])
                if "address" in plain["hosts"][key]:
                    address = Address(plain["hosts"][key]["address"])
                    port = {"ssh": {"port": address.port}} if address.port else {}
                    layers[name].append({"address": address.host, **port})
    return layers


def _check_size(source: Document, layers: Mapping[str, list[Plain]]) -> None:
    """Refuse many settings for many hosts, before there is a copy for each host."""
    sizes: dict[int, int] = {}
    total = 0
    for name, mine in layers.items():
        for layer in mine:
            if id(layer) not in sizes:
                sizes[id(layer)] = _size(layer)
            total += sizes[id(layer)]
        if total > _MOST_SETTINGS:
            message = f"hosts: up to {name} they have more than {_MOST_SETTINGS} settings in all"
            raise source.error(("hosts",), message, fix=_SEVERAL)


def _size(value: Any) -> int:
    """The number of values in a value, and itself; a long text counts as several."""
    if isinstance(value, dict):
        return 1 + sum(map(_size, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(_size, value))
    return 1 + len(value) // _CHARACTERS if isinstance(value, str) else 1


def _merged(weak: Plain, strong: Plain) -> Plain:
    """Mappings are merged key by key, at any level; other values are replaced."""
    return weak | {
        key: _merged(weak[key], value) if isinstance(value, dict) and key in weak else value
        for key, value in strong.items()
    }


def _check_sockets(source: Document, inventory: Inventory, entries: Mapping[str, list[Location]]) -> None:
    for host in inventory.hosts:
        threads, sockets = host.tuning.socket_nthreads or 1, host.tuning.nsocks_perthread or 1
        if threads * sockets > _NCCL_MAX_SOCKETS:
            message = f"{threads} threads of {sockets} sockets are {threads * sockets}"
            at = ("network", "tuning") if ("network", "tuning") in source.lines else entries[host.name][-1]
            raise source.error(
                at,
                f"network.tuning of {host.name}: {message}",
                fix=f"reduce them: NCCL uses at most {_NCCL_MAX_SOCKETS} sockets per connection",
            )


def _check_addresses(source: Document, inventory: Inventory, entries: Mapping[str, list[Location]]) -> None:
    """Refuse two names for one machine, which would get two ranks."""
    names: dict[tuple[str, int | None, str | None], str] = {}
    for host in inventory.hosts:
        endpoint = (host.address, host.ssh.port, host.ssh.gateway)
        if endpoint in names:
            message = f"hosts: {host.name} and {names[endpoint]} have the same address, {host.address}"
            raise source.error(entries[host.name][-1], message, fix="give each host its own address")
        names[endpoint] = host.name
