"""The interface of a backend: a way to get hosts for a job, and to start the planned job on them.

The order of a launch: `reserve`, until there are hosts; facts, decision and plan for these hosts; `start`.
With every backend, watch, logs, status and stop use the files of the nodes' supervisors; `state` and `cancel`
are for a job of which no node has started yet.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from mnt.fleet import Fleet
from mnt.inventory.model import Host
from mnt.launch.jobs import JobRecord

if TYPE_CHECKING:  # mnt status needs no plan, and none of what a plan needs
    from mnt.launch.plan import LaunchPlan

Tell = Callable[[str], None]  # takes progress messages, one line at a time


def new_job_id() -> str:
    """A unique id that sorts by time: `20261127-224500-3fa90c`."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(3)


@dataclass(frozen=True)
class Request:
    """The request of a job for hosts."""

    job: str


@dataclass(frozen=True)
class Reservation:
    """The hosts of a job, or why it has none yet."""

    hosts: tuple[Host, ...] | None  # in rank order; None: pending
    outside_id: str | None = None  # its id in an outside scheduler (a Slurm job id); None: it has none
    reason: str | None = None  # why it is pending


class BackendState(Enum):
    """The state, in the outside scheduler, of a job of which no node has started."""

    PENDING = "pending"  # it waits for its hosts, or for its start
    STARTED = "started"  # from now on the nodes' own files show its state
    GONE = "gone"  # it will never start


class Backend(Protocol):
    """One way to start jobs."""

    @property
    def name(self) -> str: ...

    @property
    def here(self) -> bool:
        """Whether it is for this machine only: no inventory, no SSH, and the code tree runs in place."""

    def open_fleet(self, hosts: Sequence[Host]) -> Fleet:
        """A fleet for the hosts of its jobs."""

    def reserve(self, hosts: Sequence[Host], request: Request) -> Reservation:
        """Request hosts for a job, out of `hosts`. Call it again with the same request to poll a pending
        reservation.

        Raises NeverStarted: the job will get no hosts.
        """

    def start(self, fleet: Fleet, plan: LaunchPlan, tell: Tell) -> None:
        """Stage every node (mnt.launch.staging), then start them all, node 0 first.

        Args:
            fleet: over the plan's hosts.

        Raises NeverStarted: a node could not be started; the other nodes have been stopped again.
        """

    def state(self, job: JobRecord) -> BackendState:
        """The state, in the outside scheduler, of a job of which no node has started."""

    def cancel(self, job: JobRecord) -> None:
        """Withdraw a PENDING job from the outside scheduler."""


def cancel_pending(backend: Backend, job: JobRecord) -> None:
    """Withdraw a job unless it has started: from then on its nodes are stopped one by one."""
    if backend.state(job) is BackendState.PENDING:
        backend.cancel(job)
