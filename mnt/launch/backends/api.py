"""What a backend is: a way to get hosts for a job, and to start on them what was planned.

The order of a launch: `reserve`, until there are hosts; facts, decision and plan for these hosts; `start`.
Watch, logs, status and stop go by the files of the nodes' supervisors, whatever the backend; `state` and
`cancel` are for a job of which no node has started yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from mnt.fleet import Fleet
from mnt.inventory.model import Host
from mnt.launch.jobs import JobRecord
from mnt.tasks.job import Started

if TYPE_CHECKING:  # mnt status needs no plan, and none of what a plan needs
    from mnt.launch.plan import LaunchPlan

Tell = Callable[[str], None]  # takes progress, a line at a time


@dataclass(frozen=True)
class Request:
    """What a job asks for."""

    job: str
    start_timeout: float = 120.0  # seconds for node 0 to LISTEN (it imports torch first), and for each start


@dataclass(frozen=True)
class Reservation:
    """The hosts that a job has, or waits for."""

    hosts: tuple[Host, ...] | None  # in rank order; None: pending
    outside_id: str | None = None  # what the job is called outside (a Slurm job's id); None: nothing
    reason: str | None = None  # why it is pending


class BackendState(Enum):
    """How it stands outside with a job of which no node has started."""

    PENDING = "pending"  # it will be started
    STARTED = "started"  # from here on the nodes' own files tell
    GONE = "gone"  # it never will be


class Backend(Protocol):
    """One way to start jobs. A new one is a module in this package and a line in its table."""

    @property
    def name(self) -> str: ...

    @property
    def here(self) -> bool:
        """Whether it is for this machine alone: without inventory and SSH, the code tree where it stands."""

    def open_fleet(self, hosts: Sequence[Host]) -> Fleet:
        """How the hosts of its jobs are reached."""

    def reserve(self, hosts: Sequence[Host], request: Request) -> Reservation:
        """Hosts for a job out of `hosts`. Asked again with the same request, it says how that goes.

        Raises NeverStarted: there will be none.
        """

    def start(self, fleet: Fleet, plan: LaunchPlan, request: Request, tell: Tell) -> Started:
        """Stage every node (mnt.launch.staging), then start them, node 0 first. Returns node 0's answer.

        Args:
            fleet: over the plan's hosts.

        Raises NeverStarted: a node could not be started; those that were have been stopped again.
        """

    def state(self, job: JobRecord) -> BackendState:
        """How it stands outside with a job of which no node has started."""

    def cancel(self, job: JobRecord) -> None:
        """Take back outside what has not started yet; nothing where there is nothing."""
