"""All known jobs: those on the hosts of an inventory, and the local jobs of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from mnt.errors import HostError, NeverStarted
from mnt.fleet import Outcome, Results
from mnt.launch.backends import DEFAULT, backend_named
from mnt.launch.backends.api import BackendState
from mnt.launch.backends.local import LocalBackend, this_machine
from mnt.launch.jobs import Job, merge_jobs, newest_first, record_of
from mnt.remote.job.files import FINAL_STATES
from mnt.tasks.bounds import list_share
from mnt.tasks.job import Jobs, list_jobs, list_jobs_here

if TYPE_CHECKING:
    from mnt.fleet import Fleet, HostConnection
    from mnt.inventory.model import Host
    from mnt.tasks.shape import Refusal

T = TypeVar("T")

_MOST_UNENDED = 64  # jobs of a host that run, are staged or are lost


@dataclass(frozen=True)
class Listing:
    """What the hosts say about their jobs."""

    jobs: list[Job]  # newest first
    errors: dict[str, HostError]  # the hosts that could not be asked, or do not show everything
    cut: tuple[str, ...] = ()  # the hosts that have more jobs than they listed


class JobHosts(ExitStack):
    """The hosts that may have jobs, and the connections to them. The end of the `with` block closes these.

    Args:
        hosts: of an inventory; this machine is always included.
    """

    def __init__(self, hosts: Sequence[Host]) -> None:
        super().__init__()
        self.hosts = tuple(hosts)
        self._fleets: dict[str, Fleet] = {}  # by backend
        self._dead: dict[str, HostError] = {}  # to which no login was possible

    @property
    def several(self) -> bool:
        """Whether more than one host of the inventory was asked."""
        return len(self.hosts) > 1

    def fleet_of(self, job: Job) -> Fleet:
        """A fleet that includes the job's hosts."""
        return self._fleet(job.record.backend)

    def fleets(self) -> Iterator[tuple[str, Fleet]]:
        """This machine, and then the hosts of the inventory, each with the name of a backend for it."""
        yield LocalBackend.name, self._fleet(LocalBackend.name)
        if self.hosts:
            yield DEFAULT, self._fleet(DEFAULT)

    def _fleet(self, backend_name: str) -> Fleet:
        if backend_name not in self._fleets:
            backend = backend_named(backend_name)
            hosts = this_machine().hosts if backend.here else self.hosts
            self._fleets[backend_name] = self.enter_context(backend.open_fleet(hosts))
        return self._fleets[backend_name]

    def ask(
        self, fleet: Fleet, task: Callable[..., T], args: Callable[[Host], tuple[Any, ...]]
    ) -> Results[T]:
        """Run a task on each host of a fleet, but on none to which no login was possible before.

        Args:
            args: of the task, for each host.
        """
        targets = {host.name: args(host) for host in fleet.hosts if host.name not in self._dead}
        results = fleet.run_each(task, targets)
        for name, error in results.errors().items():
            if not error.logged_in:
                self._dead[name] = error
        dead = {name: Outcome[T](name, None, error, 0.0) for name, error in self._dead.items()}
        return Results({host.name: results.get(host.name) or dead[host.name] for host in fleet.hosts})

    def jobs(self, wanted: str | None = None) -> Listing:
        """All jobs. A host that has very many lists those that have not ended, `wanted`, and the newest."""
        jobs: list[Job] = []
        errors: dict[str, HostError] = {}
        cut: tuple[str, ...] = ()
        if self.hosts:
            share = list_share(len(self.hosts))
            results = self.ask(self._fleet(DEFAULT), _list_with_clock, lambda host: (wanted, share))
            errors = results.errors()
            answers = results.values_by_host()
            jobs = merge_jobs(answers, unreachable=errors)
            for name, (listed, _) in answers.items():
                errors |= _problem(name, listed)
            cut = tuple(host for host, (listed, _) in answers.items() if listed.get("left_out"))
        try:
            host = this_machine().hosts[0]
            listed = list_jobs_here(host.jobs_dir, host.name, wanted=wanted)
            own = merge_jobs({host.name: (_of_backends(listed, here=True), 0.0)})
            errors |= _problem(host.name, listed)
            names = {job.job for job in own}
            for job in jobs:
                if job.job in names:
                    errors |= {node.host: _not_yours(node.host, job.job) for node in job.nodes if node.entry}
            jobs = [job for job in jobs if job.job not in names] + own
        except HostError as error:
            errors[error.host] = error
        standing = (_as_it_stands(job, self.hosts) for job in jobs)
        return Listing(newest_first(standing, time.time()), errors, cut)


def _not_yours(host: str, job: str) -> HostError:
    return HostError(host, "answer", f"it reports job {job}, which runs on this machine alone")


def _list_with_clock(connection: HostConnection, wanted: str | None, most: int) -> tuple[Jobs, float]:
    """The host's jobs, and its clock offset: its time compared with the middle of the round trip."""
    host = connection.target
    connection.open()
    before = time.time()
    jobs = list_jobs(connection, host.jobs_dir, host.name, wanted=wanted, most=most)
    clock_offset = jobs["now"] - (before + time.time()) / 2
    return _credible(host.name, _of_backends(jobs, here=False), wanted), clock_offset


def _credible(host: str, jobs: Jobs, wanted: str | None) -> Jobs:
    """Without the last jobs that have not ended, if a host lists too many of them: they may be inventions.

    They are those of the host itself, or of other nodes that share `jobs_dir`: the host lists first what was
    started on it.
    """
    unended = [entry["job"] for entry in jobs["jobs"] if entry["state"] not in FINAL_STATES]
    surplus = {job for job in unended[_MOST_UNENDED:] if job != wanted}
    if not surplus:
        return jobs
    problem: Refusal = {
        "message": f"it lists {len(unended)} jobs that have not ended; only the first {_MOST_UNENDED} count",
        "fix": f"mnt stop JOB -n {host} ends one of them there",
    }
    return {
        **jobs,
        "jobs": [entry for entry in jobs["jobs"] if entry["job"] not in surplus],
        "left_out": jobs.get("left_out", 0) + len(surplus),
        "problems": [problem, *jobs.get("problems", ())],
    }


def _problem(host: str, listed: Jobs) -> dict[str, HostError]:
    """Why a host does not list all its jobs, by host."""
    problems = listed.get("problems")
    if not problems:
        return {}
    return {host: HostError(host, "command", problems[0]["message"], fix=problems[0]["fix"], said=True)}


def _of_backends(jobs: Jobs, *, here: bool) -> Jobs:
    """Only the local jobs, or only the cluster's: a host of the inventory may be this machine."""
    kept = [entry for entry in jobs["jobs"] if backend_named(record_of(entry).backend).here == here]
    return {**jobs, "jobs": kept}


def _as_it_stands(job: Job, hosts: Sequence[Host]) -> Job:
    """The job; if no node has started, its backend decides on its state."""
    if job.state != "pending":
        return job
    with suppress(NeverStarted), closing(backend_named(job.record.backend)) as backend:
        if backend.state(job.record, hosts) is not BackendState.GONE:
            return job
        return replace(job, nodes=tuple(replace(node, state="lost") for node in job.nodes))
    return job
