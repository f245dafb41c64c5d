"""The edge of `--deep`: launches allreduce.py on the hosts for a short time, and removes it again."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypedDict

from mnt.errors import HostError, NeverStarted
from mnt.facts.fleet import FleetFacts
from mnt.facts.gather import Progress
from mnt.facts.trial import Trial, TrialCulprit
from mnt.fleet import Fleet, HostConnection
from mnt.inventory.hostlist import fold
from mnt.inventory.model import Host
from mnt.launch.backends.api import new_job_id
from mnt.launch.plan import LaunchPlan
from mnt.launch.staging import take_back
from mnt.launch.starting import start_job
from mnt.launch.watch import Watch
from mnt.network.decision import NetworkDecision
from mnt.tasks.bundle import script_source
from mnt.tasks.program import held
from mnt.tasks.shape import granted, shaped
from mnt.trial.output import Collected, read_trial
from mnt.trial.plan import SCRIPT, able_hosts, plan_trial

_RUN_SECONDS = 180.0  # from the time when the rendezvous listens


def try_out(fleet: Fleet, facts: FleetFacts, network: NetworkDecision, progress: Progress) -> Trial:
    """Run all-reduces on the hosts that can take part."""
    hosts = able_hosts(facts, network)
    names = tuple(host.name for host in hosts)
    without = tuple(host.name for host in hosts if "torch" not in facts.facts[host.name].packages)
    if without or not hosts:
        return Trial(names, without_torch=without, obstacle=None if hosts else "no host can take part")
    prefix = f"mnt-{secrets.token_hex(8)} "
    try:
        with _staged(fleet, hosts) as directories:
            plan = plan_trial(facts, network, hosts, directories, prefix, job=new_job_id())
            output, failed = _run(fleet, plan, prefix, facts, progress)
    except (HostError, NeverStarted) as error:
        return Trial(names, culprit=TrialCulprit(_blamed(error, names), error.message))
    return read_trial(names, output, prefix, failed, plan.world_size)


def _blamed(error: HostError | NeverStarted, names: Sequence[str]) -> str:
    """The host that an error is about, else the master."""
    if isinstance(error, HostError):
        return error.host
    return error.host or names[0]


class _Staged(TypedDict):
    directory: str


@contextmanager
def _staged(fleet: Fleet, hosts: Sequence[Host]) -> Iterator[dict[str, str]]:
    """A temporary directory on each host, by host, that holds the script while the block runs.

    Raises HostError.
    """
    text = script_source("trial.allreduce")
    with ExitStack() as stack:

        def stage(connection: HostConnection) -> str:
            frame = stack.enter_context(held(connection, "trial.stage", {"files": {SCRIPT: text}}))
            host = connection.target.name
            return shaped(host, granted(host, frame), _Staged, "frame")["directory"]

        staged = fleet.run_each(stage, {host.name: () for host in hosts})
        for error in staged.errors().values():
            raise error
        yield staged.values_by_host()


def _run(
    fleet: Fleet, plan: LaunchPlan, prefix: str, facts: FleetFacts, progress: Progress
) -> tuple[Mapping[str, str], TrialCulprit | None]:
    """What each host printed, and the host that ended the job. Raises HostError, NeverStarted."""
    collected = Collected((node.host for node in plan.nodes), prefix)
    progress(f"all-reduce on {fold(list(collected))}")
    late: list[str] = []  # the hosts that had not ended in time
    watch = Watch(plan, output=collected.feed, tell=progress)

    def give_up() -> None:
        late.extend(watch.running() or [plan.master_host])
        take_back(fleet, plan)
        watch.give_up(fleet)  # a host that ends nothing, or sends a log without end

    timer = threading.Timer(_RUN_SECONDS, give_up)
    try:
        start_job(fleet, plan, progress)
        timer.start()
        offsets = {name: seen.clock_offset for name, seen in facts.facts.items()}
        job = watch.follow(fleet, offsets)
    except HostError as error:
        if not late:
            raise
        progress(error.message)
        job = None
    finally:
        timer.cancel()
        if late:
            timer.join()
        else:
            take_back(fleet, plan)
    if late or job is None:
        first, *others = late  # one that never joins holds up all
        return collected, TrialCulprit(first, f"it was not done within {_RUN_SECONDS:g} s", tuple(others))
    if job.state == "finished":
        return collected, None
    if job.culprit is None:
        return collected, TrialCulprit(plan.master_host, f"the job is {job.state}")
    return collected, TrialCulprit(job.culprit.host, job.culprit.message)
