"""The inventory as Ansible reads it: the same hosts and logins, and what the playbooks need to know. Pure."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from mnt.fleet.login.destination import Destination
from mnt.fleet.wire.sshwords import login_words
from mnt.fleet.wire.timeouts import Timeouts
from mnt.inventory.model import Host, Inventory
from mnt.network.nic import NicChoice

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
        nics: the training NIC of each host that has one.
        accounts: the user who logs in, by host, where it is known.
        destinations: where and how `mnt` logs in to each host.
        refused: hosts to which it could not, or did not want to: for Ansible, too, they are unreachable.
    """
    master = inventory.hosts[0]
    return {
        "all": {
            "hosts": {
                host.name: _of_host(
                    host,
                    nics.get(host.name),
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
                "mnt_training_subnet": _subnet(inventory, nics),
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


def _of_host(host: Host, nic: NicChoice | None, account: str | None, words: Sequence[str]) -> dict[str, Any]:
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
    if nic is not None:
        variables["mnt_training_address"] = nic.address
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


def _subnet(inventory: Inventory, nics: Mapping[str, NicChoice]) -> str:
    """The training network. If the inventory names none: with commas, the networks that more than half of the
    hosts say they are in, and the addresses of the others: a single host could name all of the internet.
    """
    if inventory.network.subnet is not None:
        return inventory.network.subnet
    said = Counter(nic.network for nic in nics.values())
    agreed = {network for network, count in said.items() if 2 * count > len(nics)}
    return ",".join(
        dict.fromkeys(str(nic.network) if nic.network in agreed else nic.address for nic in nics.values())
    )


def _without_none(mount: Any) -> dict[str, Any]:
    return {key: value for key, value in msgspec.to_builtins(mount).items() if value not in (None, ())}
