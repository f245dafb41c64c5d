"""An array: several jobs that are submitted together, and each started as soon as it has its hosts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mnt.errors import NeverStarted
from mnt.inventory.model import Host, Inventory
from mnt.launch.backends.api import Backend, Request, Reservation, Tell, give_back
from mnt.launch.jobs import Job, JobRecord
from mnt.launch.plan import LaunchOptions
from mnt.launch.run import ASK_EVERY, Launch, detach, draft
from mnt.launch.signals import hang_up_interrupts


@dataclass
class Array:
    """The jobs of a request, in its order, and what has become of them."""

    request: Request
    started: dict[str, Launch] = field(default_factory=dict)
    refused: dict[str, NeverStarted] = field(default_factory=dict)
    ended: dict[str, Job] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """The first code that is not 0, in the order of the jobs; 125 for one that never started."""
        codes = (
            125 if job in self.refused else (self.ended[job].exit_code or 0) if job in self.ended else 0
            for job in self.request.jobs
        )
        return next((code for code in codes if code), 0)


def start_array(
    array: Array,
    backend: Backend,
    inventory: Inventory,
    hosts: Sequence[Host],
    options: LaunchOptions,
    tell: Tell,
    *,
    preflight: bool = True,
) -> None:
    """Start all jobs of an array, detached, each when its hosts come. Notes each in `array` at once.

    A job that cannot start gives its hosts back, and the others go on. If this is interrupted, those that
    have not started are withdrawn, and the others go on.

    Raises HangUp on SIGHUP, and KeyboardInterrupt.
    """
    waiting = dict.fromkeys(array.request.jobs, Reservation(None))
    try:
        with hang_up_interrupts():
            while waiting:
                for job, before in [*waiting.items()]:
                    request = replace(array.request, job=job)
                    try:
                        waiting[job] = found = backend.reserve(hosts, request)
                        if found.hosts is None:
                            if found.reason != before.reason:
                                tell(f"job {job} is pending: {found.reason}")
                            continue
                        with backend.open_fleet(found.hosts) as fleet:
                            planned = draft(
                                fleet, backend, inventory, found, request, options, preflight=preflight
                            )
                            launch = planned.launch()
                            ended = detach(launch, fleet, tell)
                        array.started[job] = launch
                        if not ended.active:
                            array.ended[job] = ended
                    except NeverStarted as error:
                        array.refused[job] = error
                        give_back(backend, _record(backend, job, waiting[job]), hosts, tell)
                    del waiting[job]
                if waiting:
                    time.sleep(ASK_EVERY)
    except BaseException:
        for job, reservation in waiting.items():
            give_back(backend, _record(backend, job, reservation), hosts, tell)
        raise
    finally:
        backend.close()


def await_array(array: Array, tell: Tell) -> None:
    """Wait for the end of each job that has started; its output is for `mnt logs`."""
    for job, launch in array.started.items():
        if job not in array.ended:
            with launch.backend.open_fleet(launch.hosts) as fleet:
                array.ended[job] = launch.watch(fleet, lambda host, text: None, tell)


def stop_array(array: Array) -> None:
    """Stop each job that has started and has not ended."""
    for job, launch in array.started.items():
        if job not in array.ended:
            launch.stop()


def _record(backend: Backend, job: str, reservation: Reservation) -> JobRecord:
    return JobRecord(job, backend.name, reservation.outside_id)
