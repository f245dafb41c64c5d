"""Unattended SSH logins from one host to others, which a launcher on that host needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from mnt.fleet import HostConnection
from mnt.inventory.model import Host
from mnt.tasks.program import run_program
from mnt.tasks.shape import shaped

_AT_ONCE = 16  # simultaneous logins from the host


class PeerLogin(TypedDict):
    """Whether a host can log in to another; if not, the line in which its ssh reports why."""

    ok: bool
    error: str | None


def mesh(
    connection: HostConnection, workers: Iterable[Host], *, timeout: float = 10.0
) -> dict[str, PeerLogin]:
    """By name of the worker, whether this host can log in to it without being asked anything.

    It uses the host's own ssh, with its user's configuration, keys and known hosts, and the user and port of
    the inventory, if set there. Logins run in parallel, each within `timeout` seconds.

    Raises HostError if this host itself cannot be reached.
    """
    wanted = [
        {"name": host.name, "address": host.address, "user": host.ssh.user, "port": host.ssh.port}
        for host in workers
    ]
    rounds = 1 + len(wanted) // _AT_ONCE
    answer = run_program(
        connection,
        "ssh.mesh",
        {"workers": wanted, "timeout": timeout, "at_once": _AT_ONCE},
        timeout=30.0 + rounds * 2 * timeout,
    )
    return shaped(connection.target.name, answer.get("results"), dict[str, PeerLogin], "results")
