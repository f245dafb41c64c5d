"""What a trial runs on each node: the all-reduces of mnt/remote/trial/allreduce.py. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mnt.facts.fleet import FleetFacts
from mnt.inventory.model import Host
from mnt.launch.engines.api import Program
from mnt.launch.engines.torchrun import REMAINS, torchrun
from mnt.launch.jobs import JobRecord
from mnt.launch.plan import LaunchPlan, Place, Work, plan_job
from mnt.network.decision import NetworkDecision

SCRIPT = "allreduce.py"
_GRACE = 5.0  # seconds between TERM and KILL
_ENVIRONMENT = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}


def able_hosts(facts: FleetFacts, network: NetworkDecision) -> list[Host]:
    """The hosts that can take part: their training NIC works, and the configured interpreter runs."""
    nics = network.working()
    return [host for host, seen in facts.answers() if host.name in nics and seen.trains_with]


def plan_trial(
    facts: FleetFacts,
    network: NetworkDecision,
    hosts: Sequence[Host],
    directories: Mapping[str, str],
    mark: str,
    *,
    job: str,
) -> LaunchPlan:
    """Plan the all-reduces on `hosts`.

    Args:
        directories: by host, the directory that holds the script; the job's own files go there too.
        mark: precedes each line of output that is for `read_trial`.

    Raises:
        NeverStarted: a host lacks what the network's mode needs.
    """
    places = {
        host.name: Place(
            home=facts.facts[host.name].home,
            cwd=directories[host.name],
            jobs_dir=f"{directories[host.name]}/jobs",
        )
        for host in hosts
    }
    work = Work(
        argv=torchrun,
        remains=REMAINS,
        program=Program(SCRIPT, (mark,)),
        nproc=None,
        env=_ENVIRONMENT,
        grace=_GRACE,
    )
    return plan_job(hosts, network, facts.master_port, places, work, JobRecord(job))
