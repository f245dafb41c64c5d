"""The SSH backend: it takes the requested hosts, and logs in to each to start its supervisor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mnt.fleet import Fleet
from mnt.inventory.model import Host
from mnt.launch.backends.api import BackendState, Outside, Request, Reservation
from mnt.launch.jobs import JobRecord

if TYPE_CHECKING:
    from mnt.launch.plan import LaunchPlan


class SshBackend:
    """See `mnt.launch.backends.api.Backend`."""

    name = "ssh"
    here = False

    def open_fleet(self, hosts: Sequence[Host]) -> Fleet:
        return Fleet(hosts)

    def reserve(self, hosts: Sequence[Host], request: Request) -> Reservation:
        return Reservation(tuple(hosts))

    def outside(self, plan: LaunchPlan) -> Outside | None:
        return None

    def state(self, job: JobRecord, hosts: Sequence[Host]) -> BackendState:
        return BackendState.STARTED  # nothing waits outside

    def cancel(self, job: JobRecord, hosts: Sequence[Host]) -> None:
        pass

    def close(self) -> None:
        pass
