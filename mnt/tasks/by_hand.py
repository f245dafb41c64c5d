"""The tasks that `fab` offers; see `mnt.tasks`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fabric.connection import Connection
from fabric.tasks import task
from invoke.collection import Collection
from invoke.exceptions import Exit

from mnt.errors import MntError
from mnt.inventory.model import Host
from mnt.tasks import mesh as mesh_task
from mnt.tasks.program import run_program


def collection() -> Collection:
    """All of them."""
    return Collection(probe, mesh, program)


@task  # type: ignore[untyped-decorator]
def probe(connection: Connection, args: str = "{}") -> None:
    """Print the host's facts. ARGS is a JSON object; mnt/remote/probe/probe.py lists what may be in it."""
    _print_answer(connection, lambda: run_program(connection, "probe.probe", json.loads(args)))


@task  # type: ignore[untyped-decorator]
def mesh(connection: Connection, workers: str) -> None:
    """Print whether the host can log in to WORKERS (addresses with commas) without a question."""
    hosts = [Host(name=address, address=address) for address in workers.split(",")]
    _print_answer(connection, lambda: mesh_task.mesh(connection, hosts))


@task  # type: ignore[untyped-decorator]
def program(connection: Connection, name: str, args: str = "{}", timeout: float = 60.0) -> None:
    """Run the program NAME of mnt/remote/ (`probe.probe`) with ARGS, a JSON object; print what it says."""
    _print_answer(
        connection,
        lambda: run_program(connection, name, json.loads(args), timeout=timeout, on_frame=_print),
    )


def _print_answer(connection: Any, ask: Callable[[], Any]) -> None:
    if not isinstance(connection, Connection):
        raise Exit("on which host? fab .. -H user@host TASK", code=2)
    try:
        _print(ask())
    except MntError as error:
        raise Exit(error.message, code=error.exit_code) from None


def _print(value: Any) -> None:
    print(json.dumps(value, indent=2))
