"""Passwordless SSH between hosts, as a launcher on one of them needs it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from mnt.fleet import HostConnection
from mnt.inventory.model import Host
from mnt.tasks.program import run_program
from mnt.tasks.shape import shaped

_AT_ONCE = 16  # logins at the same time from the one host


class PeerLogin(TypedDict):
    """Whether a host can log in to another; if not, the line in which its ssh says why."""

    ok: bool
    error: str | None


def mesh(
    connection: HostConnection, workers: Iterable[Host], *, timeout: float = 10.0
) -> dict[str, PeerLogin]:
    """Whether this host can log in to each of `workers` without a question, by the worker's name.

    The host's own ssh does it, with its user's configuration, keys and known hosts; user and port are the
    inventory's where it names any. Logins go in parallel, each within `timeout` seconds.

    Raises HostError where this host itself cannot be asked.
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
