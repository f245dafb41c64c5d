"""What playbooks are told of an inventory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mnt.fleet import Timeouts
from mnt.fleet.login.destination import resolve
from mnt.fleet.login.sshconfig import SshConfig
from mnt.inventory.model import Host, Inventory
from mnt.setup.hosts import ansible_inventory

INVENTORY = Inventory("c", "c.yaml", tuple(Host(f"node{n}", f"10.0.0.{n}") for n in range(1, 5)))


def variables(*names: str) -> dict[str, Any]:
    """Of all hosts, where only some are selected."""
    hosts = [INVENTORY.host(name) for name in names]
    ways = {host.name: resolve(host, SshConfig(None)) for host in hosts}
    found: dict[str, Any] = ansible_inventory(INVENTORY, hosts, {}, {}, ways, Timeouts())["all"]["vars"]
    return found


def test_the_inventory_is_found_from_everywhere() -> None:
    assert variables("node1")["mnt_inventory"] == f"{Path.cwd()}/c.yaml"


def test_who_may_own_the_interpreter() -> None:
    hosts = [INVENTORY.hosts[0], replace(INVENTORY.hosts[1], python_owner="bob")]
    ways = {host.name: resolve(host, SshConfig(None)) for host in hosts}
    found = ansible_inventory(INVENTORY, hosts, {}, {}, ways, Timeouts())["all"]["hosts"]
    assert [found[host.name].get("mnt_python_owner") for host in hosts] == [None, "bob"]


def test_hosts_that_are_not_selected_are_counted() -> None:
    found = variables("node3")
    assert found["mnt_host_count"] == 4
