"""What `mnt lab status` tells."""

from __future__ import annotations

from typing import Any

from mnt.lab import store, system


def survey() -> list[dict[str, Any]]:
    """All labs, as JSON-serialisable values. Raises MntError unless root asks.

    A lab's `state` is `up`, or `incomplete`: it is being started, its start was killed, or its processes are
    gone (a reboot). A host's `state` is `up` or `off`.
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
