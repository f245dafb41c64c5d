"""Fleets over a lab's hosts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mnt.fleet import Fleet, Timeouts
from mnt.inventory import loader
from mnt.inventory.model import Host
from mnt.lab.lab import Lab


def hosts_of(lab: Lab, **ssh: Any) -> list[Host]:
    """The hosts of the lab's inventory; keywords replace what it says of `ssh`."""
    return [
        replace(host, ssh=replace(host.ssh, **ssh)) for host in loader.load(str(lab.inventory_path)).hosts
    ]


def fleet_of(lab: Lab, *, timeouts: Timeouts | None = None, **ssh: Any) -> Fleet:
    return Fleet(hosts_of(lab, **ssh), timeouts=timeouts or Timeouts())
