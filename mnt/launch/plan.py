"""From an inventory, facts and options to the exact command and environment of every node. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mnt.errors import NeverStarted, UsageError
from mnt.inventory.model import Host, Inventory
from mnt.launch.engines import DEFAULT
from mnt.launch.engines.api import Engine, NodeRole, Program
from mnt.launch.jobs import JobRecord
from mnt.network.decision import NetworkDecision
from mnt.network.nic import NicChoice
from mnt.remote.job.files import JobFiles

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class LaunchOptions:
    """What the command line asks for."""

    engine: Engine = DEFAULT
    script: str | None = None  # None: the engine's own
    module: str | None = None  # in place of a script, as in `python -m`
    args: tuple[str, ...] = ()  # of the script, byte for byte (surrogate escapes)
    nproc: int | None = None  # processes a node; None: the host's slots
    env: Mapping[str, str] = field(default_factory=dict)
    grace: float = 10.0  # seconds between TERM and KILL


@dataclass(frozen=True)
class CodeTree:
    """The code that runs on a host: the release that `current` points to, or a directory as it stands."""

    path: str  # absolute
    release: str | None = None  # its id; None: nobody pushed it
    manifest: str | None = None  # hash of its content


@dataclass(frozen=True)
class NodeFacts:
    """What the plan needs to know of a host, beside the inventory and the network."""

    home: str  # absolute home directory of the user who logs in
    tree: CodeTree | None  # None: nothing was ever pushed there
    clock_offset: float = 0.0  # seconds that the host's clock is ahead of the head's
    gpus: int | None = None  # counted there; None: what the inventory says counts


@dataclass(frozen=True)
class Place:
    """Where a node works. All paths are absolute."""

    home: str  # of the user who logs in
    cwd: str
    jobs_dir: str


@dataclass(frozen=True)
class Work:
    """What is the same on every node of a job."""

    argv: Callable[[NodeRole], list[str]]  # a node's command
    remains: str  # what reads what that leaves; see Engine
    program: Program
    nproc: int | None  # processes a node; None: the host's slots
    env: Mapping[str, str]
    grace: float  # seconds between TERM and KILL
    engine: str | None = None  # its name; None: it is no engine's
    release: str | None = None  # its id; None: it runs none


@dataclass(frozen=True)
class NodePlan:
    host: str
    node_rank: int
    nproc: int
    cwd: str
    env: dict[str, str]
    argv: tuple[str, ...]
    path_prepend: tuple[str, ...]  # directories put first on the session's own PATH
    jobs_dir: str


@dataclass(frozen=True)
class LaunchPlan:
    record: JobRecord
    engine: str | None
    remains: str
    release: str | None
    master_host: str
    master_addr: str
    master_port: int
    nodes: tuple[NodePlan, ...]
    script: str | None  # a file that must be there, seen from each node's `cwd`; None: a module is run
    grace: float
    warnings: tuple[str, ...] = ()

    @property
    def job(self) -> str:
        return self.record.job

    @property
    def world_size(self) -> int:
        """Processes on all nodes."""
        return sum(node.nproc for node in self.nodes)

    def document(self) -> dict[str, Any]:
        """The plan as `mnt launch --dry-run --json` prints it."""
        return {
            **self.record.document(),
            "engine": self.engine,
            "release": self.release,
            "master": {"host": self.master_host, "addr": self.master_addr, "port": self.master_port},
            "world_size": self.world_size,
            "nodes": [
                {
                    "host": node.host,
                    "node_rank": node.node_rank,
                    "nproc": node.nproc,
                    "cwd": node.cwd,
                    "env": dict(node.env),
                    "path_prepend": list(node.path_prepend),
                    "argv": list(node.argv),
                }
                for node in self.nodes
            ],
        }


def parse_env(assignments: Sequence[str], caller: Mapping[str, str]) -> dict[str, str]:
    """`K=V` as it stands, `K` with the caller's own value.

    Raises:
        UsageError: not a name, or a `K` that the caller does not have.
    """
    env = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not _ENV_NAME.fullmatch(name):
            raise UsageError(f"--env {assignment}: {name!r} is not a variable's name", fix="--env NAME=VALUE")
        if not equals:
            if name not in caller:
                raise UsageError(f"--env {name}: it is not set here", fix=f"--env {name}=VALUE")
            value = caller[name]
        env[name] = value
    return env


def plan_launch(
    inventory: Inventory,
    hosts: Sequence[Host],
    network: NetworkDecision,
    facts: Mapping[str, NodeFacts],
    options: LaunchOptions,
    record: JobRecord,
) -> LaunchPlan:
    """Plan a job over `hosts`, in rank order; the first is the master.

    Raises:
        NeverStarted: a host has no usable NIC or, in mode rdma, no usable RDMA port; or the hosts do not
            hold one and the same release.
    """
    trees = _one_tree(hosts, facts)
    hosts = [_with_gpus(host, facts[host.name].gpus) for host in hosts]
    places = {
        host.name: Place(
            home=facts[host.name].home,
            cwd=trees[host.name].path,
            jobs_dir=expand_home(host.jobs_dir, facts[host.name].home),
        )
        for host in hosts
    }
    engine = options.engine
    name = options.module or options.script or engine.script
    work = Work(
        argv=engine.argv,
        remains=engine.remains,
        program=Program(name, options.args, module=options.module is not None),
        nproc=options.nproc,
        env=options.env,
        grace=options.grace,
        engine=engine.name,
        release=trees[hosts[0].name].release,
    )
    return plan_job(hosts, network, inventory.network.master_port, places, work, record)


def plan_job(
    hosts: Sequence[Host],
    network: NetworkDecision,
    master_port: int,
    places: Mapping[str, Place],
    work: Work,
    record: JobRecord,
) -> LaunchPlan:
    """Plan any work on `hosts`, in rank order; the first is the master. `places` has each of them.

    Raises:
        NeverStarted: a host has no usable NIC or, in mode rdma, no usable RDMA port.
    """
    networks = {host.name: _fit(host, network) for host in hosts}
    master_addr = networks[hosts[0].name][0].address
    warnings: list[str] = []
    nodes: list[NodePlan] = []
    for rank, host in enumerate(hosts):
        nproc = work.nproc or host.slots
        nic, variables = networks[host.name]
        place = places[host.name]
        python = (expand_home(host.python[0], place.home), *host.python[1:])
        computed = {
            "MASTER_ADDR": master_addr,
            "MASTER_PORT": str(master_port),
            **variables,
            "PYTHONUNBUFFERED": "1",
            "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank${rank}] ",
        }
        env, overridden = merge_env(computed, host.env, work.env)
        warnings += [f"{host.name}: {text}" for text in overridden]
        role = NodeRole(
            python=python,
            nodes=len(hosts),
            node_rank=rank,
            nproc=nproc,
            master_addr=master_addr,
            master_port=master_port,
            local_addr=nic.address,
            ranks=JobFiles(place.jobs_dir, record.job, host.name).ranks,
            program=work.program,
        )
        nodes.append(
            NodePlan(
                host=host.name,
                node_rank=rank,
                nproc=nproc,
                cwd=place.cwd,
                env=env,
                argv=tuple(work.argv(role)),
                path_prepend=_bin_directory(python),
                jobs_dir=place.jobs_dir,
            )
        )
    return LaunchPlan(
        record=record,
        engine=work.engine,
        remains=work.remains,
        release=work.release,
        master_host=hosts[0].name,
        master_addr=master_addr,
        master_port=master_port,
        nodes=tuple(nodes),
        script=work.program.script,
        grace=work.grace,
        warnings=tuple(warnings),
    )


def merge_env(
    computed: Mapping[str, str], inventory: Mapping[str, str], command_line: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """computed < inventory < command line; and a warning for each computed value that is overridden."""
    merged = {**computed, **inventory, **command_line}
    overridden = [
        f"{name}={merged[name]} from the {'command line' if name in command_line else 'inventory'}"
        f" overrides the computed {value}"
        for name, value in computed.items()
        if merged[name] != value
    ]
    return merged, overridden


def expand_home(path: str, home: str) -> str:
    """`~` and `~/x` on the host; anything else is left alone."""
    if path == "~" or path.startswith("~/"):
        return posixpath.join(home, path[2:])
    return path


def _with_gpus(host: Host, counted: int | None) -> Host:
    return host if counted is None else replace(host, gpus=counted)


def _bin_directory(python: Sequence[str]) -> tuple[str, ...]:
    directory = posixpath.dirname(python[0])
    return (directory,) if directory else ()


def _fit(host: Host, network: NetworkDecision) -> tuple[NicChoice, dict[str, str]]:
    """The NIC of a host that can train, and its network's variables. Raises NeverStarted for any other."""
    node = network.nodes.get(host.name)
    if node is None:
        raise NeverStarted(f"{host.name}: it did not say what interfaces it has", fix="mnt preflight")
    if node.obstacle is not None:
        raise NeverStarted(f"{host.name}: {node.obstacle[0]}", fix=node.obstacle[1])
    assert isinstance(node.nic, NicChoice)
    return node.nic, {variable.name: variable.value for variable in node.variables}


def _one_tree(hosts: Sequence[Host], facts: Mapping[str, NodeFacts]) -> dict[str, CodeTree]:
    """What every host holds, when all hold the same."""
    held = {host.name: tree for host in hosts if (tree := facts[host.name].tree) is not None}
    without = [host for host in hosts if host.name not in held]
    if without:
        names = ", ".join(host.name for host in without)
        raise NeverStarted(
            f"{names}: no release in {without[0].workdir}: the code was never pushed there", fix="mnt push"
        )
    if len({(tree.release, tree.manifest) for tree in held.values()}) > 1:
        listed = ", ".join(f"{name} has {tree.release}" for name, tree in held.items())
        raise NeverStarted(f"the hosts hold different releases: {listed}", fix="mnt push")
    return held
