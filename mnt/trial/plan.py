"""What a trial runs on each node: the all-reduces of mnt/remote/trial/allreduce.py. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mnt.facts.fleet import FleetFacts
from mnt.inventory.model import Host
from mnt.launch.engines.torchrun import torchrun_engine
from mnt.launch.jobs import JobRecord
from mnt.launch.plan import CodeTree, LaunchOptions, LaunchPlan, NodeFacts, plan_launch
from mnt.network.decision import NetworkDecision

SCRIPT = "allreduce.py"
_ENGINE = torchrun_engine("trial", script=SCRIPT)
_GRACE = 5.0  # seconds between TERM and KILL
_ENVIRONMENT = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}


def _uid(facts: FleetFacts, host: Host) -> int | None:
    login = facts.facts[host.name].login
    return login.uid if login else None


def able_hosts(facts: FleetFacts, network: NetworkDecision) -> list[Host]:
    """The hosts that can take part: their training NIC works, and the configured interpreter runs."""
    nics = network.working()
    return [host for host, seen in facts.answers() if host.name in nics and seen.trains_with]


def plan_trial(
    facts: FleetFacts,
    network: NetworkDecision,
    hosts: Sequence[Host],
    directories: Mapping[str, str],
    prefix: str,
    *,
    job: str,
) -> LaunchPlan:
    """Plan the all-reduces on `hosts`.

    Args:
        directories: by host, the directory that holds the script; the job's own files go there too.
        prefix: precedes each line of output that is for `read_trial`.

    Raises:
        NeverStarted: a host lacks what the network's mode needs.
    """
    inventory = replace(facts.inventory, secrets={})  # the trial needs none
    nodes = {
        host.name: NodeFacts(
            facts.facts[host.name].home,
            f"{directories[host.name]}/jobs",
            CodeTree(directories[host.name]),
            binds_store=facts.facts[host.name].binds_store,
            uid=_uid(facts, host),
        )
        for host in hosts
    }
    hosts = [replace(host, jobs_dir=f"{directories[host.name]}/jobs") for host in hosts]
    options = LaunchOptions(_ENGINE, args=(prefix,), env=_ENVIRONMENT, grace=_GRACE, share_gpus=True)
    return plan_launch(inventory, hosts, network, nodes, options, JobRecord(job))
