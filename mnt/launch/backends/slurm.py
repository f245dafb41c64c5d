"""Slurm allocates the hosts, and its srun starts the supervisors, which live as long as the allocation.

Its commands run on this machine if Slurm answers here, as on a login node, else on the first of the hosts on
which it does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from mnt.errors import HostError, NeverStarted, counted
from mnt.fleet import Fleet, HostConnection
from mnt.inventory.hostlist import fold
from mnt.inventory.model import Host
from mnt.launch.backends.api import BackendState, Outside, Request, Reservation
from mnt.launch.backends.local import LocalBackend, this_machine
from mnt.launch.backends.slurm_text import (
    NODES,
    SlurmJob,
    batch_script,
    names_in_slurm,
    read_job,
    read_nodes,
    read_partition,
    read_partitions,
    submit_argv,
)
from mnt.launch.backends.ssh import SshBackend
from mnt.launch.jobs import JobRecord
from mnt.tasks.scheduler import Ran, ask_scheduler

if TYPE_CHECKING:
    from mnt.launch.plan import LaunchPlan

# What Slurm tells a task about its share of the node, and about itself.
_PASSED = (
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
    *("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"),
)
_NOT_IN_TIME, _MISSING = 124, 127  # codes of `ask_scheduler`
_UNKNOWN = "Invalid job id"  # scontrol (Slurm 22.05)
_NO_SLURM = "sinfo is not installed"


class NoAnswer(NeverStarted):
    """The controller does not answer, maybe only now."""


class SlurmBackend(SshBackend):
    """As over SSH, but for the hosts and the start."""

    name = "slurm"

    def __init__(self) -> None:
        self._site: Fleet | None = None  # of the host on which Slurm answers
        self._ids: dict[str, str] = {}  # job -> its id in Slurm
        self._nodes: dict[str, str] = {}  # name in Slurm -> host

    def reserve(self, hosts: Sequence[Host], request: Request) -> Reservation:
        if request.job not in self._ids:
            self._submit(hosts, request)
        outside_id = self._ids[request.job]
        try:
            job = self._look(hosts, outside_id)
        except NoAnswer as silence:
            return Reservation(None, outside_id, f"{silence.message} (Slurm job {outside_id})")
        if job is None:
            raise NeverStarted(f"Slurm does not know job {outside_id} any more", fix="submit it again")
        if job.hopeless:
            self._ask(hosts, ["scancel", outside_id])
            raise NeverStarted(
                f"Slurm will not start job {outside_id}: {job.reason}",
                fix="change what is asked for: --partition, --account, --time, --gres, --count",
            )
        if job.waits:
            return Reservation(None, outside_id, f"{job.reason or job.state} (Slurm job {outside_id})")
        if job.state != "RUNNING":
            why = job.comment or job.reason
            raise NeverStarted(
                f"Slurm job {outside_id} has ended: {job.state}{f', {why}' if why else ''}",
                fix=f"scontrol show job {outside_id}",
            )
        names = self._ask(hosts, ["scontrol", "show", "hostnames", job.nodes or ""])["out"].split()
        others = [name for name in names if name not in self._nodes]
        if others:
            raise NeverStarted(
                f"Slurm job {outside_id} got {fold(others)}, none of the selected hosts",
                fix="remove what chooses nodes from --sbatch, or select them with -n",
            )
        by_name = {host.name: host for host in hosts}
        chosen = [by_name[self._nodes[name]] for name in names]
        if request.count is None:
            chosen.sort(key=list(hosts).index)
        return Reservation(tuple(chosen), outside_id)

    def outside(self, plan: LaunchPlan) -> Outside | None:
        return Outside("Slurm", passes=_PASSED)

    def state(self, job: JobRecord, hosts: Sequence[Host]) -> BackendState:
        outside_id = self._id(job)
        found = None if outside_id is None else self._look(hosts, outside_id)
        if found is None:
            return BackendState.GONE
        return BackendState.PENDING if found.waits or found.state == "RUNNING" else BackendState.GONE

    def cancel(self, job: JobRecord, hosts: Sequence[Host]) -> None:
        outside_id = self._id(job)
        if outside_id is not None:
            self._ask(hosts, ["scancel", outside_id])

    def close(self) -> None:
        if self._site is not None:
            self._site.close()
            self._site = None

    # --- helpers

    def _id(self, job: JobRecord) -> str | None:
        """The job's id in Slurm, also of one that was submitted and not looked at yet; None: it has none."""
        return job.outside_id or self._ids.get(job.job)

    def _submit(self, hosts: Sequence[Host], request: Request) -> None:
        """Raises NeverStarted: Slurm rejects it, or there is none."""
        listed = self._ask(hosts, NODES)["out"]
        nodes = read_nodes(listed)
        names = names_in_slurm(hosts, nodes)
        self._nodes = {name: host for host, name in names.items()}
        wanted = request.count or len(hosts)
        if wanted > len(hosts):
            raise NeverStarted(
                f"{wanted} hosts are asked for, of {len(hosts)}", fix="--count N, or more --nodes"
            )
        _require_room(request, listed, wanted)
        _require_logins(hosts)
        jobs = request.jobs or (request.job,)
        argv = submit_argv(request, names, [*nodes], len(jobs))
        try:
            ran = self._run(hosts, argv, batch_script(jobs))
            if ran["code"] == _NOT_IN_TIME:
                raise NeverStarted(f"Slurm does not answer sbatch: {ran['err']}", fix="see scontrol ping")
        except BaseException:  # it may have the job all the same; its name is unique
            with contextlib.suppress(NeverStarted):
                self._run(hosts, ["scancel", f"--name={request.job}"])
            raise
        if ran["code"] != 0:
            said = ran["err"].strip().splitlines() or [f"sbatch has ended with code {ran['code']}"]
            raise NeverStarted(f"Slurm rejects the job: {said[-1]}", fix="see sbatch(1)", details=said[:-1])
        number = ran["out"].strip().partition(";")[0]  # with the name of its cluster, if there are several
        for index, job in enumerate(jobs):
            self._ids[job] = f"{number}_{index}" if len(jobs) > 1 else number

    def _look(self, hosts: Sequence[Host], outside_id: str) -> SlurmJob | None:
        """None: Slurm does not know it, or not any more. Raises NoAnswer."""
        ran = self._run(hosts, ["scontrol", "show", "job", outside_id])
        if ran["code"] == 0:
            return read_job(ran["out"])
        said = _last_line(ran)
        if _UNKNOWN in said:
            return None
        raise NoAnswer(f"Slurm does not answer: {said}", fix="see scontrol ping")

    def _ask(self, hosts: Sequence[Host], argv: Sequence[str]) -> Ran:
        """Raises NeverStarted if the command fails."""
        ran = self._run(hosts, argv)
        if ran["code"] != 0:
            raise NeverStarted(f"{argv[0]}: {_last_line(ran)}")
        return ran

    def _run(self, hosts: Sequence[Host], argv: Sequence[str], given: str = "") -> Ran:
        if self._site is None:
            self._site = _site(hosts)
        try:
            return _ask_at(self._site, argv, given)
        except HostError as error:
            raise NeverStarted(f"{argv[0]}: {error.message}", fix=error.advice) from error


def _last_line(ran: Ran) -> str:
    """What a command that has failed said last."""
    return ran["err"].strip().rpartition("\n")[2] or f"code {ran['code']}"


def _ask_at(fleet: Fleet, argv: Sequence[str], given: str = "", timeout: float = 20.0) -> Ran:
    """Ask at the only host of a fleet. Raises HostError."""
    (host,) = fleet.hosts
    (outcome,) = fleet.run_each(partial(ask_scheduler, timeout=timeout), {host.name: (argv, given)}).values()
    if outcome.error is not None:
        raise outcome.error
    assert outcome.value is not None  # noqa: S101 - narrows the type
    return outcome.value


def _site(hosts: Sequence[Host]) -> Fleet:
    """A fleet of one host, on which Slurm answers. Raises NeverStarted: there is none."""
    problems: dict[str, str] = {}
    here = LocalBackend().open_fleet(this_machine().hosts)
    for name, fleet in [("this machine", here), *((host.name, Fleet([host])) for host in hosts)]:
        try:
            ran = _ask_at(fleet, ["sinfo", "-h", "-o", "%P"], timeout=8.0)
        except HostError as error:
            problems[name] = error.reason
        else:
            if ran["code"] == 0 and ran["out"].strip():
                return fleet
            last = ran["err"].strip().rpartition("\n")[2] or "it has no partition"
            problems[name] = _NO_SLURM if ran["code"] == _MISSING else last
        fleet.close()
    if {*problems.values()} == {_NO_SLURM}:
        raise NeverStarted(
            "there is no Slurm: sinfo is installed neither here nor on the hosts",
            fix="apt install slurm-client where Slurm is configured, or mnt setup slurm; or --via ssh",
        )
    details = [f"{name}: {problem}" for name, problem in problems.items()]
    raise NeverStarted("Slurm does not answer", fix="start slurmctld; see scontrol ping", details=details)


def _require_room(request: Request, listed: str, wanted: int) -> None:
    """Raises NeverStarted if the partition that is asked for is too small, or unknown."""
    named = [option.partition("=")[2] for option in request.options if option.startswith("--partition=")]
    for partition in named[-1:]:
        size = read_partition(listed, partition)
        if size < wanted and "," not in partition:
            raise NeverStarted(
                f"partition {partition} has {counted(size, 'node')}, and {wanted} are asked for",
                fix=f"fewer --nodes, --count, or another --partition: {', '.join(read_partitions(listed))}",
            )


def _require_logins(hosts: Sequence[Host]) -> None:
    """Raises NeverStarted if a host refuses SSH for good: its part of the job could not be put there.

    A login that Slurm's PAM module refuses, because the user has no job on the host yet, is possible later.
    """
    with Fleet(hosts) as fleet:
        errors = fleet.run_each(HostConnection.open, {host.name: () for host in hosts}).errors()
    refused = {name: error for name, error in errors.items() if "slurm" not in error.message.lower()}
    if refused:
        raise NeverStarted(
            f"{fold([*refused])}: no login by SSH, which mnt needs in an allocation too",
            fix="mnt launch --via slurm --export DIR writes a job for sbatch that needs none",
            details=[error.message for error in refused.values()],
        )
