"""The inventory as Ansible reads it: the same hosts and logins, and what the playbooks need to know. Pure."""

from __future__ import annotations

import ipaddress
import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from mnt.fleet.login.destination import Destination
from mnt.fleet.wire.sshwords import login_words
from mnt.fleet.wire.timeouts import Timeouts
from mnt.inventory.model import Host, Inventory
from mnt.network.nic import IPNetwork, NicChoice, agreed

_NOWHERE = ("-o", "ProxyCommand=false")  # options for ssh, which then ends as if no host answered


def ansible_inventory(
    inventory: Inventory,
    hosts: Sequence[Host],
    nics: Mapping[str, NicChoice],
    accounts: Mapping[str, str],
    destinations: Mapping[str, Destination],
    timeouts: Timeouts,
    refused: Collection[str] = (),
) -> dict[str, Any]:
    """The document that Ansible's `yaml` inventory plugin reads.

    Args:
        hosts: the selected ones, in rank order.
        nics: the training NIC of each host of the command that has one.
        accounts: the user who logs in, by host, where it is known.
        destinations: where and how `mnt` logs in to each host of the command, which may be more than `hosts`.
        refused: hosts to which it could not, or did not want to: for Ansible, too, they are unreachable.
    """
    master = inventory.hosts[0]
    networks = _training_networks(inventory, nics, len(destinations))
    addresses = _training_addresses(inventory, networks, nics, destinations)
    return {
        "all": {
            "hosts": {
                host.name: _of_host(
                    host,
                    addresses.get(host.name),
                    accounts.get(host.name),
                    _words(host, destinations[host.name], timeouts, refused),
                )
                for host in hosts
            },
            "vars": {
                "mnt_inventory": os.path.abspath(inventory.file),
                "mnt_cluster": inventory.cluster,
                "mnt_host_count": len(inventory.hosts),
                "mnt_master": master.name,  # of the inventory: a run may be for some hosts only
                "mnt_master_port": inventory.network.master_port,
                "mnt_training_subnet": ",".join(_sources(networks, addresses.values(), len(destinations))),
                "mnt_storage": [_without_none(mount) for mount in inventory.storage],
                "mnt_require": dict(inventory.require),
            },
        }
    }


def literal(value: Any) -> Any:
    """A part of an inventory in which Ansible takes no text for a template, whoever has chosen it.

    Each text is marked for Ansible's loader, as by `!unsafe`, and Unicode: one that is not breaks the loader.
    """
    if isinstance(value, str):
        return {"__ansible_unsafe": value.encode("utf-8", "replace").decode("utf-8")}
    if isinstance(value, Mapping):
        return {key: literal(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [literal(each) for each in value]
    return value


def _of_host(host: Host, training: str | None, account: str | None, words: Sequence[str]) -> dict[str, Any]:
    variables: dict[str, Any] = {
        "ansible_host": host.address,
        "ansible_ssh_common_args": shlex.join(words),
        "mnt_address": host.address,
        "mnt_python": list(host.python),
        "mnt_gpus": host.gpus,
        "mnt_env": dict(host.env),
    }
    if host.python_owner is not None:
        variables["mnt_python_owner"] = host.python_owner
    if host.ssh.user is not None:
        variables["ansible_user"] = host.ssh.user
    if host.ssh.port is not None:
        variables["ansible_port"] = host.ssh.port
    if account is not None:
        variables["mnt_user"] = account
    if training is not None:
        variables["mnt_training_address"] = training
    return variables


def _words(host: Host, destination: Destination, timeouts: Timeouts, refused: Collection[str]) -> list[str]:
    """Options for ssh, as `mnt` itself logs in, with a way of our own through the gateways; host keys must be
    known by now.

    None of them contains "ControlPath": so Ansible shares its connections by a socket in a directory of the
    user's own (`control_path_dir`), and not by one that ssh_config names.
    """
    login = replace(host.ssh, user=None, port=None)  # Ansible gives these itself
    words = login_words(login, timeouts, strict=True)
    if host.name in refused:
        return [*words, *_NOWHERE]
    if destination.jumps:
        return [*words, "-o", f"ProxyCommand={_through(destination.jumps, timeouts)}"]
    return words if host.ssh.gateway is None else [*words, "-J", "none"]


def _through(gateways: Sequence[Destination], timeouts: Timeouts) -> str:
    """A ProxyCommand: an ssh to each gateway, through those before it.

    With ProxyJump, ssh itself would start them, and they would use the socket that a ControlPath names.
    """
    *before, last = gateways
    words = ["ssh", *login_words(last.given, timeouts, strict=True), "-S", "none"]
    if before:
        words += ["-o", f"ProxyCommand={_through(before, timeouts)}"]
    # ssh replaces %h and %p in the whole command.
    first, name = (shlex.join(each).replace("%", "%%") for each in (words, [last.name]))
    return f"{first} -W '[%h]:%p' -- {name}"


def _training_networks(inventory: Inventory, nics: Mapping[str, NicChoice], hosts: int) -> list[IPNetwork]:
    """`network.subnet`; if the inventory has none, what more than half of all hosts say exactly."""
    if inventory.network.subnet is not None:
        return [ipaddress.ip_network(inventory.network.subnet)]
    said = Counter(nic.network for nic in nics.values())
    return [network for network, count in said.items() if agreed(network, count, hosts)]


def _training_addresses(
    inventory: Inventory,
    networks: Sequence[IPNetwork],
    nics: Mapping[str, NicChoice],
    destinations: Mapping[str, Destination],
) -> dict[str, str]:
    """The training addresses by host: in one of the networks, or that by which SSH goes there.

    Any other is the word of a single host, which could be an address of somebody else.
    """
    logins = {
        host.name: {host.address, destinations[host.name].hostname}
        for host in inventory.hosts
        if host.name in destinations
    }
    return {
        name: nic.address
        for name, nic in nics.items()
        if nic.address in logins.get(name, ()) or _inside(nic.address, networks)
    }


def _sources(networks: Sequence[IPNetwork], addresses: Collection[str], hosts: int) -> list[str]:
    """The training network for a firewall: networks, and the addresses that are in none of them.

    None, if there are only the addresses of half of the hosts or less: they would shut the others out.
    """
    if not networks and 2 * len(addresses) <= hosts:
        return []
    return [*map(str, networks), *(each for each in addresses if not _inside(each, networks))]


def _inside(address: str, networks: Iterable[IPNetwork]) -> bool:
    return any(ipaddress.ip_address(address) in network for network in networks)


def _without_none(mount: Any) -> dict[str, Any]:
    return {key: value for key, value in msgspec.to_builtins(mount).items() if value not in (None, ())}
