"""Asking hosts for the jobs that they hold."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mnt.errors import HostError
from mnt.launch.jobs import Job, merge_jobs
from mnt.tasks.job import list_jobs

if TYPE_CHECKING:
    from mnt.fleet import Fleet, HostConnection
    from mnt.tasks.job import Jobs


def fetch_jobs(fleet: Fleet) -> tuple[list[Job], dict[str, HostError]]:
    """All jobs of the fleet's hosts, newest first, and the hosts that could not be asked."""
    results = fleet.run(_list_with_clock)
    errors = results.errors()
    return merge_jobs(results.values_by_host(), unreachable=errors), errors


def _list_with_clock(connection: HostConnection) -> tuple[Jobs, float]:
    """The host's jobs, and the offset of its clock: its time against the middle of the round trip."""
    host = connection.target
    connection.open()
    before = time.time()
    jobs = list_jobs(connection, host.jobs_dir, host.name)
    return jobs, jobs["now"] - (before + time.time()) / 2
