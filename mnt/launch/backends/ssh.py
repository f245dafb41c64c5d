"""The SSH backend: it takes the requested hosts, and logs in to each to start its supervisor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from mnt.errors import NeverStarted
from mnt.fleet import Fleet
from mnt.inventory.model import Host
from mnt.launch.backends.api import BackendState, Request, Reservation, Tell
from mnt.launch.jobs import ACTIVE, JobRecord
from mnt.launch.staging import all_of, stage, take_back
from mnt.tasks.job import held_start, spawn_node

if TYPE_CHECKING:
    from mnt.launch.plan import LaunchPlan
    from mnt.tasks.job import JobEntry


class SshBackend:
    """See `mnt.launch.backends.api.Backend`."""

    name = "ssh"
    here = False

    def open_fleet(self, hosts: Sequence[Host]) -> Fleet:
        return Fleet(hosts)

    def reserve(self, hosts: Sequence[Host], request: Request) -> Reservation:
        return Reservation(tuple(hosts))

    def start(self, fleet: Fleet, plan: LaunchPlan, tell: Tell) -> None:
        try:
            stage(fleet, plan)
            master = plan.nodes[0]
            at_master = fleet.connection(master.host)
            with held_start(at_master, master.jobs_dir, plan.job, master.host, grace=plan.grace):
                self._spawn(fleet, plan, tell)
        except Exception:  # of `tell`, too
            take_back(fleet, plan)
            raise

    def state(self, job: JobRecord) -> BackendState:
        return BackendState.STARTED  # nothing waits outside

    def cancel(self, job: JobRecord) -> None:
        pass

    def _spawn(self, fleet: Fleet, plan: LaunchPlan, tell: Tell) -> None:
        """Start node 0, and all others as soon as its rendezvous port LISTENs."""
        staged = {node.host: (node.jobs_dir, plan.job, node.host) for node in plan.nodes}
        master = plan.master_host
        where = f"{plan.master_addr}:{plan.master_port}"
        tell(f"{master}: starting, rendezvous at {where}")
        first = partial(spawn_node, wait_for_port=True, timeout=plan.start_timeout)
        answer = all_of(fleet.run_each(first, {master: staged.pop(master)}))[master]
        if answer["node"]["state"] not in ACTIVE:
            _require_ranks(answer["node"], master, plan.job)
            take_back(fleet, plan, staged)
            return  # it has ended already: there is nothing to join, and its own entry shows why
        if not staged:
            return
        if not answer["listening"]:
            raise NeverStarted(
                f"{master}: nothing listens on {where} after {plan.start_timeout:g} s",
                fix=f"mnt logs {plan.job}",
                host=master,
            )
        tell(f"{len(staged)} more: starting")
        peer = answer["peer"]
        if peer is not None:  # node 0 chooses the port, but not the address to which the others connect
            peer = {"addr": plan.master_addr, "port": peer["port"]}
        others = partial(spawn_node, peer=peer, timeout=plan.start_timeout)
        all_of(fleet.run_each(others, staged))


def _require_ranks(entry: JobEntry, master: str, job: str) -> None:
    """Raises NeverStarted if the master's part has failed before any rank, as with a port that is taken."""
    failure = entry["failure"]
    if entry["state"] == "failed" and not entry["listening"] and failure and failure["rank"] is None:
        message = f"the job did not start: {master}: {failure['message']}"
        raise NeverStarted(message, fix=f"mnt logs {job}", host=master)
