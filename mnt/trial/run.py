"""The edge of `--deep`: a short real launch of allreduce.py, which is sent along and leaves nothing."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources

from mnt.errors import HostError, NeverStarted
from mnt.facts.fleet import FleetFacts
from mnt.facts.trial import Culprit, Trial
from mnt.fleet import Fleet, HostConnection
from mnt.inventory.hostlist import fold
from mnt.inventory.model import Host
from mnt.launch.backends.api import Request
from mnt.launch.backends.ssh import SshBackend
from mnt.launch.facts import unfit
from mnt.launch.jobs import Job, new_job_id
from mnt.launch.plan import LaunchPlan
from mnt.launch.staging import take_back
from mnt.launch.watch import Watch
from mnt.network.decision import NetworkDecision
from mnt.preflight.findings import Severity
from mnt.preflight.report import Report
from mnt.tasks.held import held
from mnt.trial.output import read_trial
from mnt.trial.plan import SCRIPT, able_hosts, plan_trial

_START_SECONDS = 120.0  # until the rendezvous listens: torch is imported first
_RUN_SECONDS = 180.0  # from then on

Progress = Callable[[str], None]


def with_trial(fleet: Fleet, report: Report, progress: Progress) -> FleetFacts:
    """The report's facts, and a trial; where something fails already, one that says so: it would hang."""
    failing = [finding for finding in report.findings if finding.severity is Severity.FAIL]
    against = f"{failing[0].check} fails already" if failing else None
    return _tried(fleet, report.fleet, report.network, progress, against)


def with_network_trial(
    fleet: Fleet, facts: FleetFacts, network: NetworkDecision, progress: Progress
) -> FleetFacts:
    """The facts, and a trial; where `mnt launch` would refuse, one that says why."""
    first = next(iter(unfit(facts, network)), None)
    against = f"{fold(first.hosts)}: {first.message} ({first.check})" if first else None
    return _tried(fleet, facts, network, progress, against)


def _tried(
    fleet: Fleet, facts: FleetFacts, network: NetworkDecision, progress: Progress, against: str | None
) -> FleetFacts:
    """The facts, and a trial; where something speaks against one, that."""
    if against is not None:
        names = tuple(host.name for host, _ in facts.answers())
        return replace(facts, trial=Trial(names, obstacle=against))
    return replace(facts, trial=try_out(fleet, facts, network, progress))


def try_out(fleet: Fleet, facts: FleetFacts, network: NetworkDecision, progress: Progress) -> Trial:
    """Run all-reduces on the hosts that can take part."""
    hosts = able_hosts(facts, network)
    names = tuple(host.name for host in hosts)
    without = tuple(host.name for host in hosts if "torch" not in facts.facts[host.name].packages)
    if without or not hosts:
        return Trial(names, without_torch=without, obstacle=None if hosts else "no host can take part")
    mark = f"mnt-{secrets.token_hex(8)} "
    try:
        with _staged(fleet, hosts) as directories:
            plan = plan_trial(facts, network, hosts, directories, mark, job=new_job_id())
            output, failed = _run(fleet, plan, facts, progress)
    except (HostError, NeverStarted) as error:
        return Trial(names, culprit=Culprit(_blamed(error, names), error.message))
    return read_trial(names, output, mark, failed, plan.world_size)


def _blamed(error: HostError | NeverStarted, names: Sequence[str]) -> str:
    """The host that an error is about, else the master."""
    if isinstance(error, HostError):
        return error.host
    return next((name for name in names if f"{name}:" in error.message), names[0])


@contextmanager
def _staged(fleet: Fleet, hosts: Sequence[Host]) -> Iterator[dict[str, str]]:
    """The script in a temporary directory of each host, meanwhile; gives these by host. Raises HostError."""
    text = resources.files("mnt.remote.trial").joinpath(SCRIPT).read_text(encoding="utf-8")
    directories: dict[str, str] = {}
    errors: list[HostError] = []
    arrived, done = threading.Semaphore(0), threading.Event()

    def hold(connection: HostConnection) -> None:
        try:
            with held(connection, "trial.stage", {"files": {SCRIPT: text}}) as frame:
                directories[connection.target.name] = frame["directory"]
                arrived.release()
                done.wait()
        except HostError as error:
            errors.append(error)
            arrived.release()

    holder = threading.Thread(
        target=fleet.run_each,
        args=(hold, {host.name: () for host in hosts}),
        kwargs={"fanout": len(hosts)},
    )
    holder.start()
    try:
        for _ in hosts:
            arrived.acquire()
        if errors:
            raise errors[0]
        yield directories
    finally:
        done.set()
        holder.join()


def _run(
    fleet: Fleet, plan: LaunchPlan, facts: FleetFacts, progress: Progress
) -> tuple[Mapping[str, str], Culprit | None]:
    """What each host printed, and who ended the job. Raises HostError, NeverStarted."""
    output = {node.host: "" for node in plan.nodes}

    def collect(host: str, text: str) -> None:
        output[host] += text

    progress(f"all-reduce on {fold(list(output))}")
    late = threading.Event()

    def give_up() -> None:
        late.set()
        take_back(fleet, plan)

    timer = threading.Timer(_RUN_SECONDS, give_up)
    try:
        SshBackend().start(fleet, plan, Request(plan.job, _START_SECONDS), progress)
        timer.start()
        offsets = {name: seen.clock_offset for name, seen in facts.facts.items()}
        job = Watch(plan, output=collect, tell=progress).follow(fleet, offsets)
    finally:
        timer.cancel()
        take_back(fleet, plan)
    if late.is_set():
        return output, Culprit(plan.master_host, f"it was not done within {_RUN_SECONDS:g} s")
    return output, _failure(job)


def _failure(job: Job) -> Culprit | None:
    if job.state == "finished":
        return None
    culprit = job.culprit
    if culprit is None:
        return Culprit(job.nodes[0].host, f"the job is {job.state}")
    return Culprit(culprit.host, culprit.message)
