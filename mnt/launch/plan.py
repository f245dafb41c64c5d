"""Computes the exact command and environment of every node from inventory, facts and options. Pure."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mnt.errors import NeverStarted, UsageError
from mnt.inventory.hints import unexpanded
from mnt.inventory.hostlist import fold
from mnt.inventory.model import Host, Inventory, SecretSource
from mnt.inventory.values import is_variable_name
from mnt.launch import slots
from mnt.launch.engines import DEFAULT
from mnt.launch.engines.api import Engine, NodeRole, Program
from mnt.launch.jobs import Description, JobRecord, Member
from mnt.launch.secret import HIDDEN, Secret
from mnt.launch.slots import VISIBLE
from mnt.network.decision import NetworkDecision
from mnt.network.nic import NicChoice
from mnt.remote.common import containers
from mnt.remote.job.files import JobFiles, temporary_directory
from mnt.tasks.push import Pushed

_COMMAND = 300  # characters of a command that are noted
PROMISED = "MNT_GPUS"  # the variable with the number of GPUs that the processes of a node were promised


@dataclass(frozen=True)
class LaunchOptions:
    """The options of a launch."""

    engine: Engine = DEFAULT
    script: str | None = None  # None: the engine's own
    module: str | None = None  # instead of a script, as in `python -m`
    args: tuple[str, ...] = ()  # of the script, byte for byte (surrogate escapes)
    local_rank: bool = True  # False: no `--local_rank=N` for scripts of an engine that passes it
    nproc: int | str | None = None  # processes per node; GPU: as many as there are GPUs; None: its slots
    share_gpus: bool = False  # with other jobs
    numa: str | None = None  # one of NUMA; None: processes run on all CPUs
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)  # variables whose values are not shown
    notes: tuple[str, ...] = ()  # shown with the plan's warnings
    unread: str | None = None  # a file in the code tree that must not be there: its variables were not read
    grace: float = 10.0  # seconds between TERM and KILL
    portable: bool = False  # a plan to be carried out by hand: nothing of mnt's is on the hosts
    start_timeout: float = 120.0  # seconds per node; node 0 must LISTEN by then (it imports torch first)

    @property
    def program(self) -> Program:
        """What every rank runs. Raises UsageError if there is no such program."""
        name = self.module or self.script or self.engine.script
        if name is None or (self.module and self.engine.executable):
            what = "has no default program" if name is None else "runs programs, and no modules (-m)"
            raise UsageError(
                f"--engine {self.engine.name} {what}", fix="name the program: mnt launch .. PROGRAM"
            )
        return Program(
            name,
            self.args,
            module=self.module is not None,
            local_rank=self.engine.local_rank and self.local_rank,
            executable=self.engine.executable,
        )


@dataclass(frozen=True)
class CodeTree:
    """The code that runs on a host: the release that `current` points to, or a directory as it is."""

    path: str  # absolute
    release: str | None = None  # its id; None: the directory is not a release
    manifest: str | None = None  # hash of its content
    pushed: Pushed | None = None  # who pushed it, from where; None: unknown


@dataclass(frozen=True)
class NodeFacts:
    """What the plan needs to know about a host, in addition to the inventory and the network."""

    home: str  # absolute path of the login user's home directory
    local: str  # directory of the jobs' files that are on this host only
    tree: CodeTree | None  # None: nothing was ever pushed there
    clock_offset: float = 0.0  # seconds that the host's clock is ahead of the head's
    gpus: int | None = None  # counted on the host; None: use the inventory's number
    counted: int | None = None  # its GPUs, as counted there, whatever the inventory says; None: unknown
    binds_store: bool = True  # see HostFacts
    reads_python_path: bool = True  # see HostFacts
    packages: Mapping[str, str] | None = None  # versions by name, of those looked up; None: not looked up
    numa_binding: bool | None = None  # see HostFacts
    uid: int | None = None  # of the login user; None: unknown


@dataclass(frozen=True)
class NodePlan:
    host: str
    node_rank: int
    nproc: int
    cwd: str
    env: dict[str, str]  # without the secrets
    argv: tuple[str, ...]
    path_prepend: tuple[str, ...]  # directories put first on the session's own PATH
    jobs_dir: str
    workdir_group: str | None  # the Unix group that shares the release
    activate: tuple[str, ...] = ()  # lines for bash, which are run before the job
    ulimit: Mapping[str, int] = field(default_factory=dict)  # soft limits by name; -1: unlimited
    unset: tuple[str, ...] = ()  # variables that the first program does not get
    container: Mapping[str, str] | None = None  # how it is ended, see `mnt.remote.common.containers.document`
    paths: tuple[str, ...] = ()  # that a container must have
    elsewhere: bool = False  # whether the interpreter is found only by these, or in a container
    python_path: tuple[str, ...] = ()  # directories put first on PYTHONPATH: the root of the code tree
    python: tuple[str, ...] = ()  # the words that start the interpreter
    gpus: int = 0  # promised to the processes of this node, at most one each
    devices: tuple[str, ...] = ()  # those, as CUDA_VISIBLE_DEVICES names them
    all_gpus: int = 0  # of the host, by the inventory
    subset: str | None = None  # the selected GPUs or slots of the host, for people; None: all

    def with_python_path(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment with the whole PYTHONPATH, as a host makes it (`job_environment`)."""
        path = [*self.python_path, *filter(None, [env.get("PYTHONPATH")])]
        return {**env, "PYTHONPATH": ":".join(path)} if path else {**env}


@dataclass(frozen=True)
class LaunchPlan:
    record: JobRecord
    engine: str
    remains: str  # the reader of what the engine leaves; see Engine
    python_files: Mapping[str, str]  # see Engine
    release: str | None
    master_host: str
    master_addr: str
    master_port: int
    nodes: tuple[NodePlan, ...]
    script: str | None  # a file that must exist, relative to each node's `cwd`; None: a module is run
    grace: float
    start_timeout: float
    command: str | None = None  # the program and its arguments, for people
    executable: str | None = None  # a program that each node must have; None: the interpreter runs it
    files: tuple[str, ...] = ()  # further ones of the tree that must exist
    listens: bool = True  # see Engine
    share_gpus: bool = False
    programs: Mapping[str, str] = field(default_factory=dict)  # that each host must have: name -> package
    unread: str | None = None  # see LaunchOptions
    warnings: tuple[str, ...] = ()
    secrets: Mapping[str, Secret] = field(default_factory=dict)  # further variables, on every node
    # Those that a launch has to read yet (`mnt.launch.secret`), and the file of the inventory that has them.
    secret_sources: Mapping[str, SecretSource] = field(default_factory=dict, repr=False)
    inventory_file: str = ""

    @property
    def job(self) -> str:
        return self.record.job

    @property
    def secret_names(self) -> list[str]:
        """The variables whose values are not shown, whether they are read or not."""
        return sorted({*self.secrets, *self.secret_sources})

    @property
    def description(self) -> Description:
        """What the entries of its nodes must say."""
        return Description(
            tuple(Member(node.host, node.node_rank, node.nproc) for node in self.nodes),
            f"{self.master_addr}:{self.master_port}",
            self.record,
            self.engine,
            self.release,
            None,
            self.command,
        )

    @property
    def world_size(self) -> int:
        """The number of processes on all nodes."""
        return sum(node.nproc for node in self.nodes)

    def document(self) -> dict[str, Any]:
        """The plan as `mnt launch --dry-run --json` prints it."""
        return {
            **asdict(self.record),
            "engine": self.engine,
            "release": self.release,
            "master": {"host": self.master_host, "addr": self.master_addr, "port": self.master_port},
            "world_size": self.world_size,
            "nodes": [{**asdict(node), "env": self.shown_env(node)} for node in self.nodes],
        }

    def shown_env(self, node: NodePlan) -> dict[str, str]:
        """A node's environment for people: `***` for each secret, and the whole PYTHONPATH."""
        return node.with_python_path({**node.env, **dict.fromkeys(self.secret_names, HIDDEN)})


def parse_env(assignments: Sequence[str], caller: Mapping[str, str]) -> dict[str, str]:
    """The variables of `--env`: `K=V` as written, `K` with the caller's value.

    Raises:
        UsageError: K is not a valid name, or the caller has no variable `K`.
    """
    env = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not is_variable_name(name):
            raise UsageError(f"--env: {name!r} is not a variable name", fix="--env NAME=VALUE")
        if not equals:
            if name not in caller:
                raise UsageError(f"--env {name}: not set in your environment", fix=f"--env {name}=VALUE")
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
    """Plan a job on `hosts`, in rank order; the first is the master. An engine may need another order.

    Raises:
        NeverStarted: a host has no usable NIC or, in mode rdma, no usable RDMA port; or the hosts do not
            all have the same release; or one lacks what the engine needs; or the engine cannot start such a
            job.
        UsageError: the options name no program.
    """
    engine, program = options.engine, options.program
    trees = _one_tree(hosts, facts)
    networks = {host.name: _fit(host, network) for host in hosts}
    _require_packages(engine, hosts, facts)
    asked = tuple(hosts)
    if engine.by_address:
        hosts = sorted(hosts, key=lambda host: networks[host.name][0].address)
    master_addr = networks[hosts[0].name][0].address
    master_port = inventory.network.master_port
    secrets, sources = _secrets(inventory, options)
    warnings = list(options.notes)
    if tuple(hosts) != asked:
        order = ", ".join(host.name for host in hosts)
        warnings.append(f"torch numbers the nodes by their addresses, and so does mnt: {order}")
    if engine.open_store:
        warnings.append(
            f"{hosts[0].name}: the store of this job listens on every address of the host; "
            "playbooks/firewall.yml closes the port"
        )
    processes = {host.name: _processes(host, facts[host.name], options) for host in hosts}
    members = tuple(Member(host.name, rank, processes[host.name][0]) for rank, host in enumerate(hosts))
    nodes: list[NodePlan] = []
    for rank, host in enumerate(hosts):
        home, (nproc, promised) = facts[host.name].home, processes[host.name]
        nic, variables = networks[host.name]
        python = (expand_home(host.python[0], home), *host.python[1:])
        directory = posixpath.dirname(python[0])
        jobs_dir = expand_home(host.jobs_dir, home)
        root = trees[host.name].path
        own_env = {name: value for name, value in host.env.items() if name != VISIBLE or not host.chosen}
        chosen = slots.chosen_gpus(host, {*options.env, *options.secrets})
        if options.numa is not None:
            slots.require_numa(host, nproc, promised, binds=facts[host.name].numa_binding)
        role = NodeRole(
            python=python,
            nodes=len(hosts),
            node_rank=rank,
            nproc=nproc,
            master_addr=master_addr,
            master_port=master_port,
            local_addr=nic.address,
            ranks=JobFiles(
                jobs_dir if options.portable else facts[host.name].local, record.job, host.name
            ).ranks,
            program=program,
            numa=options.numa,
            binds_store=facts[host.name].binds_store and not options.portable,
            job=record.job,
            members=members,
            devices={**chosen, **own_env, **options.env}.get(VISIBLE),
            reads_python_path=facts[host.name].reads_python_path,
            grace=options.grace,
        )
        computed = {
            "MASTER_ADDR": master_addr,
            "MASTER_PORT": str(master_port),
            **variables,
            **({PROMISED: str(promised)} if promised else {}),
            **chosen,
            "PYTHONUNBUFFERED": "1",
            "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank${rank}] ",
            **engine.variables(role),
        }
        env, overridden = merge_env(computed, own_env, options.env, {*secrets, *sources})
        warnings += [f"{host.name}: {text}" for text in overridden]
        cpu = engine.cpu_variable
        if cpu and not promised and cpu not in env and cpu not in {*secrets, *sources}:
            warnings.append(
                f"{host.name}: `gpus` is 0 in the inventory; on a host without GPUs, {engine.name} needs "
                f"{cpu}=true (--env, or `env` in the inventory), else each rank trains alone"
            )
        if ":" in root:
            warnings.append(f"{host.name}: PYTHONPATH cannot name {root}, which contains ':'")
        container = None
        if host.in_container:
            name = f"mnt-{record.job}-{host.name}"
            container = containers.document(python, name)
            python = tuple(
                containers.for_a_job(
                    python,
                    name=name,
                    names=[*env, *sorted({*secrets, *sources}), *containers.OF_A_JOB],
                    places=_places(
                        root, trees[host.name], expand_home(host.workdir, home), jobs_dir, facts[host.name]
                    ),
                    cwd=root,
                    user=facts[host.name].uid,
                    limits=host.ulimit.numbers,
                    temporary=env.get("TMPDIR") or _temporary(facts[host.name].uid),
                )
            )
            role = replace(role, python=python)
        nodes.append(
            NodePlan(
                host=host.name,
                node_rank=rank,
                nproc=nproc,
                cwd=root,
                env=env,
                argv=_argv(engine, role, host),
                python=python,
                gpus=promised if engine.torch else 0,
                devices=slots.devices(env.get(VISIBLE), promised),
                all_gpus=host.gpus,
                subset=None if host.chosen is None else ",".join(map(str, host.chosen)),
                path_prepend=(directory,) if directory else (),
                python_path=() if ":" in root else (root,),
                activate=host.activate,
                ulimit=host.ulimit.numbers,
                elsewhere=host.trains_elsewhere,
                container=container,
                unset=tuple(containers.unset_for(host.python)) if host.in_container else (),
                paths=tuple(required.path for required in inventory.paths) if host.in_container else (),
                jobs_dir=jobs_dir,
                workdir_group=host.workdir_group,
            )
        )
    warnings += unexpanded((host.name, {**host.env, **options.env}) for host in hosts)
    return LaunchPlan(
        record=record,
        engine=engine.name,
        remains=engine.remains,
        python_files=engine.python_files,
        release=trees[hosts[0].name].release,
        master_host=hosts[0].name,
        master_addr=master_addr,
        master_port=master_port,
        nodes=tuple(nodes),
        unread=options.unread,
        share_gpus=options.share_gpus,
        programs={"numactl": "numactl"} if options.numa else {},
        script=program.script,
        command=_command(program),
        executable=program.name if program.executable else None,
        files=engine.files,
        listens=engine.listens,
        grace=options.grace,
        start_timeout=options.start_timeout,
        warnings=tuple(warnings),
        secrets=secrets,
        secret_sources=sources,
        inventory_file=inventory.file,
    )


def _processes(host: Host, facts: NodeFacts, options: LaunchOptions) -> tuple[int, int]:
    """See `slots.processes`."""
    found = host if facts.gpus is None else replace(host, gpus=facts.gpus)
    return slots.processes(found, options.nproc, options.env, counted=facts.counted)


def _require_packages(engine: Engine, hosts: Sequence[Host], facts: Mapping[str, NodeFacts]) -> None:
    """Raises NeverStarted, with the hosts' names, if their interpreters lack a package of the engine."""
    for name in engine.packages:
        found = {host.name: facts[host.name].packages for host in hosts}
        without = [host for host, packages in found.items() if packages is not None and name not in packages]
        if without:
            python = shlex.join(next(host.python for host in hosts if host.name == without[0]))
            raise NeverStarted(
                f"{fold(without)}: {python} has no {name}, which --engine {engine.name} needs",
                fix=f"{python} -m pip install {name}, or set `python` in the inventory",
                host=without[0],
            )


def _argv(engine: Engine, role: NodeRole, host: Host) -> tuple[str, ...]:
    """The command of a node. Raises NeverStarted, with the host's name."""
    try:
        return tuple(engine.argv(role))
    except NeverStarted as error:
        raise NeverStarted(f"{host.name}: {error.message}", fix=error.fix, host=host.name) from None


def _places(root: str, tree: CodeTree, workdir: str, jobs_dir: str, facts: NodeFacts) -> list[str]:
    """The directories that a job in a container needs: the code and what it links to, and the job's files."""
    temporary = _temporary(facts.uid)
    local = [] if temporary is None else [facts.local, temporary]
    return [root if tree.release is None else workdir, jobs_dir, *local]


def _temporary(uid: int | None) -> str | None:
    """The TMPDIR of jobs; None: unknown."""
    return None if uid is None else temporary_directory(uid)


def _command(program: Program) -> str:
    """The program and its arguments as a line for a shell, cut if it is long."""
    words = (*(("-m",) if program.module else ()), program.name, *program.args)
    line = shlex.join(words)
    return line if len(line) <= _COMMAND else f"{line[: _COMMAND - 3]}..."


def merge_env(
    computed: Mapping[str, str],
    inventory: Mapping[str, str],
    command_line: Mapping[str, str],
    secrets: Collection[str] = (),
) -> tuple[dict[str, str], list[str]]:
    """The environment (computed < inventory < command line), and a warning for each overridden value.

    Args:
        secrets: variables that come from elsewhere, and override all of these.
    """
    merged = {**computed, **inventory, **command_line}
    overridden = [
        f"{name}={merged[name]} from the {'command line' if name in command_line else 'inventory'}"
        f" overrides the computed {value}"
        for name, value in computed.items()
        if merged[name] != value and name not in secrets
    ]
    overridden += [
        f"{name}={HIDDEN}, a secret, overrides the computed {value}"
        for name, value in computed.items()
        if name in secrets
    ]
    return {name: value for name, value in merged.items() if name not in secrets}, overridden


def _secrets(
    inventory: Inventory, options: LaunchOptions
) -> tuple[dict[str, Secret], dict[str, SecretSource]]:
    """The variables that are not shown, with known values, and still to be read.

    Inventory < --env-file < --env, whose values for them are secret too.
    """
    given = [name for name in {**inventory.secrets, **options.secrets} if name in options.env]
    known = {**options.secrets, **{name: Secret(options.env[name]) for name in given}}
    return known, {name: source for name, source in inventory.secrets.items() if name not in known}


def expand_home(path: str, home: str) -> str:
    """`~` and `~/x` as paths on the host; any other path unchanged."""
    if path == "~" or path.startswith("~/"):
        return posixpath.join(home, path[2:])
    return path


def _fit(host: Host, network: NetworkDecision) -> tuple[NicChoice, dict[str, str]]:
    """A host's training NIC and network variables. Raises NeverStarted if the host cannot train."""
    node = network.nodes.get(host.name)
    if node is None:
        raise NeverStarted(f"{host.name}: it did not report its network interfaces", fix="mnt preflight")
    if node.obstacle is not None:
        raise NeverStarted(f"{host.name}: {node.obstacle[0]}", fix=node.obstacle[1])
    assert isinstance(node.nic, NicChoice)  # noqa: S101 - narrows the type
    return node.nic, {variable.name: variable.value for variable in node.variables}


def _one_tree(hosts: Sequence[Host], facts: Mapping[str, NodeFacts]) -> dict[str, CodeTree]:
    """The code tree of each host. Raises NeverStarted unless all hosts have the same one."""
    held = {host.name: tree for host in hosts if (tree := facts[host.name].tree) is not None}
    without = [host for host in hosts if host.name not in held]
    if without:
        names = ", ".join(host.name for host in without)
        raise NeverStarted(
            f"{names}: no release in {without[0].workdir}: the code was never pushed there", fix="mnt push"
        )
    if len({(tree.release, tree.manifest) for tree in held.values()}) > 1:
        listed = ", ".join(f"{name} has {tree.release}" for name, tree in held.items())
        raise NeverStarted(f"the hosts have different releases: {listed}", fix="mnt push")
    return held
