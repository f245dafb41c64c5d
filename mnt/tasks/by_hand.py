"""The tasks that `fab` offers; see `mnt.tasks`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fabric.connection import Connection
from fabric.tasks import Task
from invoke.collection import Collection
from invoke.exceptions import Exit
from paramiko import Transport

from mnt.errors import MntError
from mnt.fleet import HostConnection
from mnt.inventory.model import Host, Ssh
from mnt.tasks import logins
from mnt.tasks.program import run_program


def collection() -> Collection:
    """All tasks of this module."""
    return Collection(*map(Task, (probe, mesh, program)))


def probe(connection: Connection, args: str = "{}") -> None:
    """Print the host's facts. ARGS is a JSON object; mnt/remote/probe/probe.py lists its keys."""
    _print_answer(connection, lambda host: run_program(host, "probe.probe", json.loads(args)))


def mesh(connection: Connection, workers: str) -> None:
    """Print whether the host can log in to WORKERS (addresses with commas between) unattended."""
    hosts = [Host(name=address, address=address) for address in workers.split(",")]
    _print_answer(connection, lambda host: logins.mesh(host, hosts))


def program(connection: Connection, name: str, args: str = "{}", timeout: float = 60.0) -> None:
    """Run the program NAME of mnt/remote/ (`probe.probe`) with ARGS, a JSON object; print what it sends."""
    _print_answer(
        connection,
        lambda host: run_program(host, name, json.loads(args), timeout=timeout, on_frame=_print),
    )


class _FabricLogin(HostConnection):
    """A connection that Fabric opens, with its own rules."""

    def __init__(self, connection: Connection) -> None:
        ssh = Ssh(user=connection.user, port=connection.port, config=None)
        super().__init__(Host(str(connection.host), str(connection.host), ssh))
        self._fabric: Any = connection

    def _log_in(self) -> Transport:
        self._fabric.open()
        transport: Transport = self._fabric.transport
        return transport


def _print_answer(connection: Any, ask: Callable[[HostConnection], Any]) -> None:
    if not isinstance(connection, Connection):
        raise Exit("no host: fab .. -H user@host TASK", code=2)
    try:
        _print(ask(_FabricLogin(connection)))
    except MntError as error:
        raise Exit(error.message, code=error.exit_code) from None


def _print(value: Any) -> None:
    print(json.dumps(value, indent=2))
