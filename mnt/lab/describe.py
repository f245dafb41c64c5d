"""The description of all labs, for `mnt lab status`."""

from __future__ import annotations

from typing import Any

from mnt.lab import store, system
from mnt.lab.spec import HostSpec


def describe_labs() -> list[dict[str, Any]]:
    """All labs, as JSON-serialisable values. Raises MntError if the user is not root.

    The `state` of a lab is `up`, or `incomplete`: it is starting, its start was killed, or its processes are
    gone (for example after a reboot). The `state` of a host is `up` or `off`.
    """
    system.require_root()
    return [_describe(name, store.read(name)) for name in store.names()]


def _describe(name: str, record: store.Record | None) -> dict[str, Any]:
    running = record is not None and record.running
    return {
        "lab": name,
        "state": "up" if running else "incomplete",
        "inventory": str(store.directory(name) / "inventory.yaml") if running else None,
        "hosts": [_describe_host(record, host) for host in record.spec.hosts] if record is not None else [],
    }


def _describe_host(record: store.Record, host: HostSpec) -> dict[str, Any]:
    init = record.inits.get(host.name) if record.this_boot else None
    pid = init.pid if init is not None and init.alive else None
    return {
        "host": host.name,
        "state": "off" if pid is None else "up",
        "pid": pid,
        "address": host.management,
        "training": host.training,
        "nic": host.nic,
    }
