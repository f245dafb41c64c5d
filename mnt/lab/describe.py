"""The description of all labs, for `mnt lab status`."""

from __future__ import annotations

from typing import Any

from mnt.lab import store, system


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
        "hosts": _hosts(record) if record is not None else [],
    }


def _hosts(record: store.Record) -> list[dict[str, Any]]:
    described = []
    for host in record.spec.hosts:
        init = record.inits.get(host.name)
        alive = init is not None and record.this_boot and init.alive
        described.append(
            {
                "host": host.name,
                "state": "up" if alive else "off",
                "pid": init.pid if init is not None and alive else None,
                "address": host.management,
                "training": host.training,
                "nic": host.nic,
            }
        )
    return described
