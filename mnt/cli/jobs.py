"""What `mnt status`, `logs` and `stop` begin with: the jobs of the selected hosts and of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mnt import ui
from mnt.cli.options import Selection
from mnt.errors import MntError, UsageError
from mnt.inventory.find import NoInventory, SeveralLabs
from mnt.inventory.hostlist import brief
from mnt.inventory.model import Host
from mnt.launch import seen
from mnt.launch.jobs import Job, SeveralJobs, named_job
from mnt.launch.status import JobHosts


@dataclass(frozen=True)
class FoundJobs:
    hosts: JobHosts  # where they were found
    jobs: list[Job]  # newest first
    complete: bool  # every host on which there may be jobs was asked, and answered
    unasked: tuple[str, ...] = ()  # hosts that did not answer

    @property
    def where(self) -> str:
        """The hosts that this is about, for a sentence that there is no job."""
        if self.complete:
            return "the hosts"
        return "the hosts that answered" + (f" ({brief(self.unasked)} did not)" if self.unasked else "")

    def named(self, job: str | None) -> Job:
        """The job with that id, which may be abbreviated; None: the newest.

        Raises MntError, as a UsageError if no host can have it, or several jobs may be meant.
        """
        try:
            return named_job(self.jobs, job)
        except SeveralJobs:
            raise
        except UsageError as error:
            if self.complete:
                raise
            fix = f"bring {brief(self.unasked)} back, then ask again" if self.unasked else error.fix
            raise MntError(error.message.replace("the hosts", self.where), fix=fix) from None


@contextmanager
def found_jobs(selection: Selection, wanted: str | None = None) -> Iterator[FoundJobs]:
    """Ask the hosts for jobs, as `look_for_jobs`."""
    with job_hosts(selection) as (hosts, decided):
        yield look_for_jobs(hosts, wanted, decided=decided)


@contextmanager
def job_hosts(selection: Selection, *, all_of_them: bool = False) -> Iterator[tuple[JobHosts, bool]]:
    """The hosts that may have jobs; and whether they could be chosen.

    Where no inventory is named and none can be chosen, only this machine may have jobs.

    Args:
        all_of_them: raise UsageError if several labs run and none is named, instead of a warning.
    """
    hosts: tuple[Host, ...] = ()
    undecided = False
    try:
        hosts = selection.hosts
    except NoInventory as error:
        undecided = isinstance(error, SeveralLabs)
        if selection.options or (undecided and all_of_them):
            raise
        if undecided:
            ui.warn(f"{error.message}, and none of them was asked for jobs; {error.fix}")
    with JobHosts(hosts) as found:
        yield found, not undecided


def look_for_jobs(hosts: JobHosts, wanted: str | None, *, decided: bool) -> FoundJobs:
    """Ask the hosts for jobs, with a warning for each that does not answer.

    Args:
        wanted: the job that is named on the command line, if any.
        decided: they are all hosts that there are.
    """
    listing = hosts.jobs(wanted)
    for problem in listing.errors.values():
        ui.warn(problem.message)
        if problem.advice:
            ui.info(f"  fix: {ui.fix_text(problem.advice)}")
    if listing.cut:
        ui.note(f"{brief(listing.cut)}: too many jobs: the oldest that have ended are not listed")
    disputed = [job for job in listing.jobs if job.disagreeing]
    for job in disputed:
        other = "disagrees with most hosts" if job.agreed else "these hosts do not agree"
        ui.warn(f"{brief(job.disagreeing)}: {other} about job {job.job}")
    complete = decided and not (listing.errors or disputed)
    seen.remember(job.job for job in listing.jobs)
    return FoundJobs(hosts, listing.jobs, complete, tuple(listing.errors))
