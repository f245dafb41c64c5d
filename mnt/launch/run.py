"""A launch, from the request to the end of the job, for `mnt launch` and for Python scripts. Prints nothing.

    with backend.open_fleet(hosts) as fleet:
        launch = draft(fleet, backend, inventory, Reservation(hosts), request, options).launch()
        launch.start(fleet)
        job = launch.watch(fleet, output=show)

`attend` starts and watches a job as a program at a terminal should: when the terminal closes, the job goes
on; an interrupt stops it on all nodes. `run` does all of this in one call; `dry_run` only plans.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from mnt.errors import NeverStarted
from mnt.fleet import Fleet, Results
from mnt.inventory.hostlist import fold
from mnt.inventory.model import Host, Inventory
from mnt.launch.backends import backend_named
from mnt.launch.backends.api import Backend, Request, Reservation, Tell, give_back, new_job_id
from mnt.launch.env_files import with_engine_file
from mnt.launch.facts import facts_here, launch_facts
from mnt.launch.jobs import ACTIVE, Job, JobRecord, merge_job
from mnt.launch.plan import CodeTree, LaunchOptions, LaunchPlan, plan_launch
from mnt.launch.secret import read_secrets
from mnt.launch.signals import guarded, hang_up_interrupts
from mnt.launch.staging import all_of, node_specs, take_back
from mnt.launch.starting import start_job
from mnt.launch.watch import Watch
from mnt.tasks.job import Stopped, await_ranks, check_node

Output = Callable[[str, str], None]  # takes (host, text) as it arrives; text may contain surrogate escapes

ASK_EVERY = 2.0  # seconds between two requests for a reservation


@dataclass(frozen=True)
class Launch:
    """A planned job."""

    backend: Backend
    plan: LaunchPlan
    hosts: tuple[Host, ...]  # in rank order
    clock_offsets: Mapping[str, float]  # by host: seconds that its clock is ahead of the head's
    reservation: Reservation = field(default_factory=lambda: Reservation(None))

    def start(self, fleet: Fleet, tell: Tell = lambda text: None) -> None:
        """Start every node. Raises NeverStarted; then nothing runs."""
        start_job(fleet, self.plan, tell, self.backend.outside(self.plan))
        self.reservation.in_use.set()

    def watch(self, fleet: Fleet, output: Output, tell: Tell = lambda text: None) -> Job:
        """Follow the started job to its end, through lost connections. See `Watch.follow`."""
        return Watch(self.plan, output=output, tell=tell).follow(fleet, self.clock_offsets)

    def stop(self) -> Results[Stopped]:
        """Stop the job on all nodes, over new connections: an interrupted fleet has closed its own."""
        with self.backend.open_fleet(self.hosts) as fleet:
            return self.take_back(fleet)

    def take_back(self, fleet: Fleet) -> Results[Stopped]:
        """Stop the job on all nodes; what is reserved for it can be given back then."""
        self.reservation.in_use.clear()
        return take_back(fleet, self.plan)


@dataclass(frozen=True)
class Draft:
    """The plan of a launch, if there is one, and the reasons why the launch would be refused."""

    planned: Launch | None
    refusals: tuple[NeverStarted, ...]
    error: NeverStarted | None  # what a launch raises because of the refusals
    tree: CodeTree | None = None  # what would run, on the master

    def launch(self) -> Launch:
        """The planned job, with its secrets read, none of which is revealed here.

        Raises NeverStarted if the launch is refused, InventoryError if a secret cannot be read.
        """
        if self.error is not None:
            raise self.error
        assert self.planned is not None  # noqa: S101 - narrows the type
        plan = self.planned.plan
        read = read_secrets(plan.inventory_file, plan.secret_sources)
        return replace(self.planned, plan=replace(plan, secrets={**plan.secrets, **read}, secret_sources={}))


def draft(
    fleet: Fleet,
    backend: Backend,
    inventory: Inventory,
    reservation: Reservation,
    request: Request,
    options: LaunchOptions,
    *,
    preflight: bool = True,
) -> Draft:
    """Gather facts from the hosts, and plan. If the job cannot start, only `Draft.launch` raises.

    The file with variables that the engine's own launcher would read is read here.

    Args:
        fleet: over the reservation's hosts.
        preflight: run the checks that need no more than the probe, and refuse a launch that fails them.

    Raises UsageError: that file cannot be used.
    """
    hosts = reservation.hosts or ()
    options = with_engine_file(options, os.environ, here=backend.here)
    record = JobRecord(request.job, backend.name, reservation.outside_id)
    unfit: tuple[NeverStarted, ...] = ()
    try:
        if not hosts:
            raise NeverStarted("the job has no hosts", fix="name at least one")
        look = partial(facts_here, torch=options.engine.torch) if backend.here else launch_facts
        facts = look(fleet, inventory, hosts, preflight=preflight)
        unfit = facts.refusals
        options = replace(options, notes=(*options.notes, *facts.notes))
        plan = plan_launch(facts.inventory, hosts, facts.network, facts.nodes, options, record)
    except NeverStarted as error:
        return Draft(None, (*unfit, error), _not_fit(backend, unfit) or error)
    offsets = {name: node.clock_offset for name, node in facts.nodes.items()}
    launch = Launch(backend, plan, hosts, offsets, reservation)
    return Draft(launch, unfit, _not_fit(backend, unfit), facts.nodes[hosts[0].name].tree)


def _not_fit(backend: Backend, refusals: Sequence[NeverStarted]) -> NeverStarted | None:
    """All refusals in one error; None if there are none."""
    if not refusals:
        return None
    begin = "" if backend.here else "not fit to train: "
    return NeverStarted.because(refusals, "problems", begin=begin)


@contextmanager
def reserved(
    backend: Backend, hosts: Sequence[Host], request: Request, tell: Tell = lambda text: None
) -> Iterator[Reservation]:
    """Wait for the hosts of a job. They are given back if the block fails and the job does not run.

    Raises NeverStarted: the job will get no hosts.
    """
    reservation = Reservation(None)
    try:
        with hang_up_interrupts():
            while True:
                before, reservation = reservation, backend.reserve(hosts, request)
                if reservation.hosts is not None:
                    break
                if reservation.reason != before.reason:
                    tell(f"job {request.job} is pending: {reservation.reason}")
                time.sleep(ASK_EVERY)
        yield reservation
    except BaseException:
        if not reservation.in_use.is_set():
            record = JobRecord(request.job, backend.name, reservation.outside_id)
            give_back(backend, record, hosts, tell)
        raise
    finally:
        backend.close()


@contextmanager
def drafted(
    backend: Backend,
    inventory: Inventory,
    hosts: Sequence[Host],
    options: LaunchOptions,
    tell: Tell = lambda text: None,
    request: Request | None = None,
    *,
    preflight: bool = True,
) -> Iterator[tuple[Fleet, Draft]]:
    """Get the hosts of a new job, connect to them, and plan. The job must be started in the block.

    Args:
        request: of the job; None: for all these hosts.

    Raises as `reserved` and `draft`.
    """
    request = request or Request(new_job_id())
    with (
        reserved(backend, hosts, request, tell) as reservation,
        backend.open_fleet(reservation.hosts or ()) as fleet,
    ):
        yield fleet, draft(fleet, backend, inventory, reservation, request, options, preflight=preflight)


def attend(
    launch: Launch,
    fleet: Fleet,
    output: Output,
    tell: Tell = lambda text: None,
    *,
    on_interrupt: Callable[[], object] | None = None,
) -> Job:
    """Start a job and watch it to its end. Call it in the main thread, because it handles signals.

    Args:
        on_interrupt: called instead of `launch.stop` after Ctrl-C or SIGTERM; it must stop the job.

    Raises:
        NeverStarted: see `Launch.start`.
        HangUp: the terminal was closed; the job goes on.
        Any exception of `output`; the job goes on.
        KeyboardInterrupt: interrupted; the job was stopped.
        HostError: no node could be followed.
    """
    with guarded(on_interrupt or launch.stop) as guard:
        launch.start(fleet, tell)
        guard.watch()
        return launch.watch(fleet, output, tell)


def detach(
    launch: Launch,
    fleet: Fleet,
    tell: Tell = lambda text: None,
    *,
    on_interrupt: Callable[[], object] | None = None,
) -> Job:
    """Start a job, and return as soon as the ranks of every node are started.

    Returns the job as it is then: it may have ended. Raises NeverStarted and KeyboardInterrupt, as `attend`.
    """
    with guarded(on_interrupt or launch.stop):
        launch.start(fleet, tell)
        return _await_ranks(launch, fleet, tell)


def _await_ranks(launch: Launch, fleet: Fleet, tell: Tell) -> Job:
    """The job as soon as all its ranks are started; if a node's part has failed before, at its end.

    Raises NeverStarted: no rank of it was started, or not all in time; then nothing runs.
    """
    plan = launch.plan
    nodes = {node.host: (node.jobs_dir, plan.job, node.host) for node in plan.nodes}
    try:
        tell("waiting for the ranks to start")
        results = fleet.run_each(partial(await_ranks, timeout=plan.start_timeout), nodes)
        found = results.values_by_host()
        if any(each["node"]["state"] not in (*ACTIVE, "finished") for each in found.values()):
            job = launch.watch(fleet, lambda host, text: None, tell)
            if job.rankless:
                culprit = job.culprit
                why = culprit.sentence() if culprit else f"it was {job.state}"
                raise NeverStarted(f"the job did not start: {why}", fix=f"mnt logs {plan.job}")
            return job
        late = [host for host, each in all_of(results).items() if not each["started"]]
        if late:
            raise NeverStarted(
                f"{fold(late)}: no ranks after {plan.start_timeout:g} s",
                fix=f"mnt logs {plan.job} shows what they wait for; --start-timeout waits longer",
                host=late[0],
            )
    except Exception:
        launch.take_back(fleet)
        raise
    offsets = launch.clock_offsets
    entries = {host: (each["node"], offsets.get(host, 0.0)) for host, each in found.items()}
    return merge_job(entries, unreachable=(), asked=entries, planned=plan.description)


def dry_run(
    inventory: Inventory,
    options: LaunchOptions,
    *,
    hosts: Sequence[Host] | None = None,
    backend: str = "ssh",
    preflight: bool = True,
    ask: bool = True,
) -> Draft:
    """What `run` would start or refuse, by a check or by a host. Nothing is reserved, staged or started.

    Args:
        ask: whether the hosts are asked what they would refuse now, such as a port that is in use.
    """
    way, request = backend_named(backend), Request(new_job_id())
    wanted = Reservation(inventory.hosts if hosts is None else tuple(hosts))
    with way.open_fleet(wanted.hosts or ()) as fleet:
        found = draft(fleet, way, inventory, wanted, request, options, preflight=preflight)
        if found.planned is None or found.refusals or not ask:
            return found
        plan = found.planned.plan
        specs = node_specs(plan, way.outside(plan), secret="", created=0.0)
        errors = fleet.run_each(check_node, {host: (spec,) for host, spec in specs.items()}).errors()
    refusals = tuple(NeverStarted(error.message, fix=error.advice) for error in errors.values())
    return replace(found, refusals=refusals, error=refusals[0] if refusals else None)


def run(
    inventory: Inventory,
    options: LaunchOptions,
    output: Output,
    tell: Tell = lambda text: None,
    *,
    hosts: Sequence[Host] | None = None,
    backend: str = "ssh",
    preflight: bool = True,
) -> Job:
    """Launch a job and watch it to its end; its `exit_code` is that of `mnt launch`.

    Args:
        hosts: in rank order, the first is the master; None: all hosts of the inventory.

    Raises what `Draft.launch` and `attend` raise.
    """
    way, chosen = backend_named(backend), inventory.hosts if hosts is None else hosts
    with drafted(way, inventory, chosen, options, tell, preflight=preflight) as (fleet, planned):
        return attend(planned.launch(), fleet, output, tell)
