"""The interface of a backend: a way to get hosts for a job, and to start the planned job on them.

The order of a launch: `reserve`, until there are hosts; facts, decision and plan for these hosts; the start
(`mnt.launch.starting`), which stages every node and has their supervisors started over SSH or from `outside`.
With every backend, watch, logs, status and stop use the files of the nodes' supervisors; `state` and `cancel`
are for a job of which no node has started yet.
"""

from __future__ import annotations

import secrets
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from mnt.errors import NeverStarted
from mnt.fleet import Fleet
from mnt.inventory.model import Host
from mnt.launch.jobs import JobRecord
from mnt.remote.job.files import START

if TYPE_CHECKING:  # mnt status needs no plan, and none of what a plan needs
    from mnt.launch.plan import LaunchPlan

Tell = Callable[[str], None]  # takes progress messages, one line at a time


def new_job_id() -> str:
    """A unique id that sorts by time: `20261127-224500-3fa90c`."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(3)


def start_line(job: str | None, *, within: int = 0) -> str:
    """The line for `sh` that starts what is staged for a job on a node, whichever of its nodes that is.

    Other users may know the job's id: what they put there is not run.

    Args:
        job: None: the shell's first argument.
        within: seconds to wait until it is staged.
    """
    return (
        f"j={'$1' if job is None else shlex.quote(job)}; d=/tmp/mnt-$(id -u); n={within * 5}; "
        f'while :; do set -- "$d/$j"/*/{START}; [ -O "$d" ] && [ ! -L "$d" ] && [ -e "$1" ] && break; '
        '[ "$n" -gt 0 ] || { echo "nothing is staged here" >&2; exit 69; }; n=$((n-1)); sleep 0.2; done; '
        'while [ $# -gt 1 ]; do sh "$1" & shift; done; exec sh "$1"'
    )


@dataclass(frozen=True)
class Request:
    """The request of a job for hosts."""

    job: str
    count: int | None = None  # hosts to choose; None: all that are named
    options: tuple[str, ...] = ()  # words for the scheduler's own command that submits a job
    jobs: tuple[str, ...] = ()  # of an array, in its order: they are submitted together, with the first


@dataclass(frozen=True)
class Reservation:
    """The hosts of a job, or why it has none yet."""

    hosts: tuple[Host, ...] | None  # in rank order; None: pending
    outside_id: str | None = None  # its id in an outside scheduler (a Slurm job id); None: it has none
    reason: str | None = None  # why it is pending
    # Set while the job runs on its hosts: they are not given back then, whatever ends its watch.
    in_use: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)


@dataclass(frozen=True)
class Outside:
    """A program that starts the supervisors of all nodes at once, after they are staged.

    On each node it runs `start_line`; see `mnt.remote.job.join`.
    """

    name: str
    argv: tuple[str, ...] = ()  # run on node 0; empty: it runs elsewhere, or runs already
    ends: bool = False  # whether it ends when all supervisors have been started, and not with the job
    passes: tuple[str, ...] = ()  # its variables that a job gets
    # For --export, from a directory with the nodes' scripts (RANK-HOST.sh): what starts each on its node.
    by_hand: Callable[[str], tuple[str, ...]] | None = None
    needs: Mapping[str, str] = field(default_factory=dict)  # programs of each node: name -> Debian package
    needs_first: Mapping[str, str] = field(default_factory=dict)  # further ones, of node 0


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

    def outside(self, plan: LaunchPlan) -> Outside | None:
        """The program that starts the supervisors: pure. None: `mnt` starts them, over SSH."""

    def state(self, job: JobRecord, hosts: Sequence[Host]) -> BackendState:
        """The state, in the outside scheduler, of a job of which no node has started.

        Args:
            hosts: those that may know the scheduler.

        Raises NeverStarted: it does not answer.
        """

    def cancel(self, job: JobRecord, hosts: Sequence[Host]) -> None:
        """Withdraw a PENDING job from the outside scheduler. Raises NeverStarted: it does not answer."""

    def close(self) -> None:
        """Close the connections to the outside scheduler; they are opened again when they are needed."""


def give_back(backend: Backend, job: JobRecord, hosts: Sequence[Host], tell: Tell) -> None:
    """As `cancel_pending`, after an error that counts for more than one of this: that is only told."""
    try:
        cancel_pending(backend, job, hosts)
    except NeverStarted as error:
        outside = f" as {job.outside_id}" if job.outside_id else ""
        tell(f"job {job.job} may still be in the queue of {backend.name}{outside}: {error.message}")


def cancel_pending(backend: Backend, job: JobRecord, hosts: Sequence[Host]) -> None:
    """Withdraw a job unless it has started: from then on its nodes are stopped one by one.

    Raises NeverStarted: the outside scheduler does not answer.
    """
    if backend.state(job, hosts) is BackendState.PENDING:
        backend.cancel(job, hosts)
