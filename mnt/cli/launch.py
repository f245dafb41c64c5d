"""`mnt launch`: start a job, and watch it to its end."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import click

from mnt import ui
from mnt.cli.job_view import show_end
from mnt.cli.options import (
    Selection,
    grace_option,
    json_option,
    mode_option,
    selection_options,
    slots_option,
    slurm_options,
)
from mnt.cli.stop import show_stopped
from mnt.errors import MntError, NeverStarted, OutputError, UsageError, counted
from mnt.fleet import Fleet
from mnt.inventory.model import Host, Inventory
from mnt.launch import backends, engines, run, seen
from mnt.launch.array import Array, await_array, start_array, stop_array
from mnt.launch.backends.api import Backend, Request, new_job_id
from mnt.launch.backends.local import this_machine
from mnt.launch.banner import WithoutBanner
from mnt.launch.bars import Bars
from mnt.launch.engines import accelerate, command
from mnt.launch.env_files import is_file
from mnt.launch.export import files_of, write_files
from mnt.launch.origin import remarks
from mnt.launch.plan import LaunchOptions, LaunchPlan, parse_env
from mnt.launch.run import Draft, Launch
from mnt.launch.secret import Secret, check_private, read_env_file
from mnt.launch.signals import HangUp
from mnt.launch.slots import GPU, NUMA, VISIBLE
from mnt.launch.stop import stop_document

_CONFIG = 1 << 20  # bytes of a config file that are looked at
_STARTERS = ("python", "python3", "torchrun", "deepspeed", "accelerate", "mpirun", "srun")


class Processes(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number from 1, or `gpu`."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value == GPU:
            return GPU
        try:
            return click.IntRange(min=1).convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is neither a number from 1 nor {GPU!r}", param, ctx)


@click.command(context_settings={"allow_interspersed_args": False})
@selection_options
@slots_option
@mode_option
@json_option
@click.option(
    "--via",
    type=click.Choice(list(backends.BACKENDS)),
    default=backends.DEFAULT,
    show_default=True,
    help="How to start the job; local: on this machine only, in this directory, without an inventory.",
)
@click.option(
    "--engine",
    type=click.Choice(list(engines.ENGINES)),
    default=engines.DEFAULT.name,
    show_default=True,
    help="Decides the default SCRIPT, and how the processes of a node are started.",
)
@click.option(
    "--rdzv",
    type=click.Choice(["static", "c10d"]),
    default="static",
    show_default=True,
    help="The rendezvous of torchrun; c10d numbers the nodes by their addresses.",
)
@click.option(
    "--deepspeed-launcher",
    is_flag=True,
    help="With --engine deepspeed: DeepSpeed's own launcher starts the processes of a node.",
)
@click.option(
    "--accelerate-config",
    metavar="PATH",
    help="With --engine accelerate: a file of accelerate config, in the pushed tree.",
)
@click.option(
    "--rank-env",
    type=click.Choice(command.NAMES),
    multiple=True,
    help="With --engine command: also set PET_.. or OMPI_COMM_WORLD_.. variables.",
)
@click.option("--python", metavar="PATH", help="Interpreter for --via local; default: the one that runs mnt.")
@click.option(
    "--nproc",
    type=Processes(),
    metavar="N|gpu",
    help="Processes per node; gpu: as many as GPUs are found there.",
)
@click.option(
    "--master-port",
    type=click.IntRange(1024, 65535),
    help="Port of the rendezvous; default: the inventory's, or the next free one if a job has that.",
)
@click.option(
    "--env",
    "assignments",
    multiple=True,
    metavar="K[=V]",
    help="Set a variable of the job; K alone: with your own value.",
)
@click.option(
    "--env-file",
    "env_files",
    multiple=True,
    metavar="FILE",
    help="Set the variables in its lines K=V; their values are never shown.",
)
@slurm_options
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.option(
    "--no-local-rank", is_flag=True, help="With --engine deepspeed: pass no --local_rank=N to SCRIPT."
)
@click.option(
    "--numa",
    type=click.Choice(NUMA),
    help="Bind each process to the CPUs near its GPU, by torchrun's --numa-binding.",
)
@click.option("--share-gpus", is_flag=True, help="Start the job even if another job has the same GPUs.")
@click.option("--push", "push_first", is_flag=True, help="Push this directory first, as mnt push does.")
@click.option("--detach", is_flag=True, help="Start the job and return; see mnt status, logs and stop.")
@click.option("--dry-run", is_flag=True, help="Print each node's command and environment; start nothing.")
@click.option(
    "--export",
    metavar="DIR",
    help="Write scripts to DIR that start the job without mnt; start nothing.",
)
@click.option("--no-preflight", is_flag=True, help="Start the job even if a check fails.")
@grace_option
@click.option(
    "--start-timeout",
    type=click.FloatRange(min=1),
    default=120,
    show_default=True,
    help="Seconds that a node may take to start.",
)
@click.argument("script", required=False, type=click.Path())
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def launch(
    selection: Selection,
    as_json: bool,
    via: str,
    engine: str,
    rdzv: str,
    deepspeed_launcher: bool,
    accelerate_config: str | None,
    rank_env: tuple[str, ...],
    python: str | None,
    nproc: int | str | None,
    master_port: int | None,
    assignments: tuple[str, ...],
    env_files: tuple[str, ...],
    count: int | None,
    submit: tuple[str, ...],
    array: int | None,
    as_module: bool,
    no_local_rank: bool,
    numa: str | None,
    share_gpus: bool,
    push_first: bool,
    detach: bool,
    dry_run: bool,
    export: str | None,
    no_preflight: bool,
    grace: float,
    start_timeout: float,
    script: str | None,
    args: tuple[str, ...],
) -> int:
    """Start a job on the hosts: the master (the first host), then the workers.

    SCRIPT is a path in the pushed tree (default: the engine's script); with --engine command it is a program,
    a path with a slash or a name on PATH. ARGS are its arguments. Options of mnt must come before SCRIPT.
    Without --detach, the output of every node is shown until the job ends, and
    Ctrl-C stops the job on all nodes.
    """
    if as_module and script is None:
        raise click.UsageError("-m needs the name of a module")
    if script == "":  # an unset variable of the caller's shell, and not the wish for the default
        raise click.UsageError("SCRIPT is empty")
    if accelerate_config is not None and is_file(accelerate_config):
        with contextlib.suppress(OSError), open(accelerate_config, "rb") as file:  # the hosts have their own
            accelerate.check_config(accelerate_config, file.read(_CONFIG).decode("utf-8", "replace"))
    way = engines.chosen_engine(
        engine,
        rdzv=rdzv,
        deepspeed_launcher=deepspeed_launcher,
        rank_env=rank_env,
        accelerate_config=accelerate_config,
    )
    if not as_module and not way.executable and script in _STARTERS and not is_file(script):
        raise UsageError(
            f"{script} is no SCRIPT: mnt starts the interpreter and torchrun itself",
            fix=f"remove {script}, and what is meant for it: mnt launch SCRIPT [ARGS]..",
        )
    if no_local_rank and not way.local_rank:
        raise UsageError(f"--engine {engine} passes no --local_rank", fix="remove --no-local-rank")
    options = LaunchOptions(
        engine=way,
        script=None if as_module else script,
        module=script if as_module else None,
        args=args,
        local_rank=not no_local_rank,
        nproc=nproc,
        share_gpus=share_gpus,
        numa=numa,
        env=parse_env(assignments, os.environ),
        secrets=_read_env_files(env_files),
        grace=grace,
        start_timeout=start_timeout,
    )
    name = options.program.name
    if script is None and not is_file(name):
        raise UsageError(
            f"no SCRIPT is given, and there is no {name}, the default, in this directory",
            fix="mnt launch SCRIPT, a path in the pushed tree",
        )
    backend = backends.backend_named(via)
    if push_first and (dry_run or backend.here):
        reason = "a dry run sends nothing" if dry_run else f"--via {via} runs this directory as it is"
        raise UsageError(f"--push: {reason}", fix="remove --push")
    if backend.here:
        options = replace(options, notes=(*options.notes, *_left_out(options)))
    if via != "slurm" and (count is not None or submit or array is not None):
        raise UsageError("--count, --array and options of sbatch are for --via slurm", fix="use --via slurm")
    inventory = _inventory(backend, selection, python, master_port)
    hosts = inventory.hosts if backend.here else selection.hosts
    if via == "slurm":
        _look_at_slurm(hosts, options)
    if export is not None:
        _require_portable(backend, options)
    if export is not None or (dry_run and via == "slurm" and options.engine.by_hand):
        files = _files(inventory, hosts, options, backend, export, count, submit, array)
        if files is not None:
            return _show_files(files, as_json) if dry_run else _export(export or "", files)
    if dry_run:
        draft = run.dry_run(inventory, options, hosts=hosts, backend=via, preflight=not no_preflight)
        _warn(draft)
        _show_draft(draft, as_json)
        return 1 if draft.refusals else 0
    if push_first:
        _push(inventory, hosts)
    if array is not None:
        jobs = tuple(new_job_id() for _ in range(array))
        tasks = Array(Request(jobs[0], count, submit, jobs))
        return _run_array(tasks, backend, inventory, hosts, options, detach, not no_preflight, as_json)
    request = Request(new_job_id(), count, submit)
    try:
        with run.drafted(
            backend, inventory, hosts, options, ui.note, request, preflight=not no_preflight
        ) as (
            fleet,
            draft,
        ):
            _warn(draft)
            return _run(fleet, draft.launch(), detach, as_json)
    except HangUp:  # while it waited for its hosts: the request is withdrawn
        return 129


def _push(inventory: Inventory, hosts: Sequence[Host]) -> None:
    """Push this directory to the hosts. Raises NeverStarted if that fails."""
    from mnt.cli.push import push_tree, read_tree, warn_of_part

    warn_of_part(inventory)
    try:
        result = push_tree(read_tree("."), hosts)
    except MntError as error:
        raise NeverStarted(error.message, fix=error.advice, details=error.details) from error
    if not result.ok:
        errors = [f"{name}: {host.error}" for name, host in result.hosts.items() if host.error]
        fixes = (host.fix for host in result.hosts.values() if host.fix)
        raise NeverStarted("the push failed", fix=next(fixes, "mnt push shows more"), details=errors)
    ui.note(f"release {result.release} is current on {counted(len(result.hosts), 'host')}")


def _read_env_files(files: tuple[str, ...]) -> dict[str, Secret]:
    """The variables of all files, with a warning for each that is not private. Raises UsageError."""
    variables: dict[str, Secret] = {}
    for file in files:
        variables |= read_env_file(file, os.environ)
        try:
            check_private(file, os.stat(file))
        except UsageError as error:
            ui.warn(f"{error.message}; {error.fix}")
    return variables


def _left_out(options: LaunchOptions) -> list[str]:
    """A note if the GPUs that the caller's shell allows are not those of the job."""
    if VISIBLE not in os.environ or VISIBLE in options.env or VISIBLE in options.secrets:
        return []
    return [f"{VISIBLE} of this shell is not in the environment of the job; --env {VISIBLE} passes it on"]


def _inventory(
    backend: Backend, selection: Selection, python: str | None, master_port: int | None
) -> Inventory:
    """The selected inventory, or that of this machine. Raises UsageError for an option of the other case."""
    if backend.here and selection.options:
        given = " and ".join(selection.options)
        raise UsageError(f"--via {backend.name} runs on this machine only", fix=f"remove {given}")
    if python is not None and not backend.here:
        raise UsageError("--python is only for --via local", fix="set `python` of the hosts in the inventory")
    inventory = this_machine(python=python) if backend.here else selection.inventory
    if master_port is None:
        return inventory
    network = replace(inventory.network, master_port=master_port, port_by_option=True)
    return replace(inventory, network=network)


def _run(fleet: Fleet, launch: Launch, detach: bool, as_json: bool) -> int:
    """Start the job, watch it unless detached, and stop it on all nodes after an interrupt."""
    plan = launch.plan
    ui.note(
        f"job {plan.job}: {plan.command}, world size {plan.world_size} on {counted(len(plan.nodes), 'node')}"
    )
    seen.remember([plan.job])
    stop = partial(_stop_everywhere, launch)
    try:
        if detach:
            job = run.detach(launch, fleet, ui.note, on_interrupt=stop)
            if job.active or job.state == "finished":
                _show_started(plan, as_json)
                return 0
            return show_end(job, as_json)
        lines = ui.HostLines(
            [node.host for node in plan.nodes],
            sys.stderr if as_json else sys.stdout,
            prefix=len(plan.nodes) > 1,
        )
        bars = Bars(lines.feed, lines.live)
        view = WithoutBanner(bars.feed)
        job = run.attend(launch, fleet, view.feed, ui.note, on_interrupt=stop)
        for each in (view, bars, lines):
            each.close()
    except HangUp:
        return 129
    except (BrokenPipeError, OutputError):
        ui.note(f"the output cannot be written any more; the job goes on: mnt logs -f {plan.job}")
        raise
    return show_end(job, as_json)


def _look_at_slurm(hosts: Sequence[Host], options: LaunchOptions) -> None:
    """Warn of what only the wait for hosts would show. Raises UsageError: GPUs are Slurm's to choose."""
    subset = next((host for host in hosts if host.chosen is not None and host.gpus), None)
    if subset is not None:
        raise UsageError(
            f"{subset.name}: Slurm chooses the GPUs of its jobs", fix="-n without GPUs, and --gres=gpu:N"
        )
    needed = options.program.script
    if needed is not None and not is_file(needed):
        ui.warn(f"{needed} is not in this directory: the release on the hosts must have it")


def _require_portable(backend: Backend, options: LaunchOptions) -> None:
    """Raises UsageError if a job cannot be started without `mnt`."""
    if backend.here:
        raise UsageError("--export is for hosts of an inventory", fix="remove --via local")
    if not options.engine.by_hand:
        raise UsageError(
            f"--export: --engine {options.engine.name} needs programs of mnt on the nodes",
            fix="--engine fsdp or deepspeed",
        )


def _files(
    inventory: Inventory,
    hosts: Sequence[Host],
    options: LaunchOptions,
    backend: Backend,
    export: str | None,
    count: int | None,
    submit: Sequence[str],
    array: int | None,
) -> dict[str, str] | None:
    """The scripts of a job, by name; None: only a dry run wants them, and there can be none.

    Raises UsageError, NeverStarted: there can be none.
    """
    if backend.name == "slurm":  # nobody is asked: Slurm chooses the hosts, and they may accept no login
        from mnt.launch.backends.slurm_export import FILE, batch_file

        words = submit if array is None else (*submit, f"--array=0-{array - 1}")
        secrets = sorted({*inventory.secrets, *options.secrets})
        try:
            return {FILE: batch_file(inventory, hosts, options, count=count, words=words, secrets=secrets)}
        except UsageError:
            if export is not None:
                raise
            return None
    draft = run.dry_run(
        inventory,
        replace(options, portable=True),
        hosts=hosts,
        backend=backend.name,
        preflight=False,
        ask=False,
    )
    _warn(draft)
    if draft.error is not None:
        raise draft.error
    assert draft.planned is not None  # noqa: S101 - narrows the type
    plan = draft.planned.plan
    return files_of(plan, draft.planned.hosts, backend.outside(plan), os.path.abspath(export or ""))


def _show_files(files: Mapping[str, str], as_json: bool) -> int:
    if as_json:
        ui.document({"files": dict(files)})
        return 0
    for name, text in files.items():
        ui.plain(f"# --- {name}")
        ui.lines(text.removesuffix("\n"))
    return 0


def _export(place: str, files: Mapping[str, str]) -> int:
    directory = os.path.abspath(place)
    write_files(directory, files)
    last = [*files][-1]
    way = "sbatch" if last.endswith(".sbatch") else "sh"
    ui.note(
        f"{counted(len(files), 'file')} in {directory}; {way} {shlex.quote(os.path.join(directory, last))}"
    )
    return 0


def _run_array(
    array: Array,
    backend: Backend,
    inventory: Inventory,
    hosts: Sequence[Host],
    options: LaunchOptions,
    detached: bool,
    preflight: bool,
    as_json: bool,
) -> int:
    """Start all jobs, and wait for their ends unless detached. An interrupt stops all of them."""
    try:
        start_array(array, backend, inventory, hosts, options, ui.note, preflight=preflight)
        seen.remember([*array.started])
        if not detached:
            await_array(array, ui.note)
    except HangUp:  # those that have started go on
        return 129
    except KeyboardInterrupt:
        ui.info("interrupted: stopping all jobs of the array")
        stop_array(array)
        raise
    for refusal in array.refused.values():
        ui.error(refusal)
    if as_json:
        ui.document({"jobs": [launch.plan.document() for launch in array.started.values()]})
    elif detached:
        for job in array.started:
            ui.plain(job)
    else:
        for ended in array.ended.values():
            show_end(ended, as_json)
    return array.exit_code


def _stop_everywhere(launch: Launch) -> None:
    """End an interrupted job; an interrupt some seconds later leaves it to `mnt stop`, and says so."""
    job = launch.plan.job
    stopped = False
    why = "interrupted again"
    try:
        ui.info("")
        ui.info(f"interrupted: stopping {job} on every node")
        documents = {host: stop_document(outcome) for host, outcome in launch.stop().items()}
        stopped = all(each["status"] in ("stopped", "none") for each in documents.values())
        why = "not stopped everywhere"
        for host, document in documents.items():
            show_stopped(host, document)
    finally:
        if not stopped:
            ui.warn(f"{why}: {job} may still run; mnt stop {job} ends it")


def _warn(draft: Draft) -> None:
    for warning in draft.planned.plan.warnings if draft.planned else ():
        ui.warn(warning)
    for remark in remarks(draft.tree, os.getcwd()) if draft.tree else ():
        ui.warn(remark)


def _show_draft(draft: Draft, as_json: bool) -> None:
    plan = draft.planned.plan if draft.planned else None
    outside = draft.planned.backend.outside(draft.planned.plan) if draft.planned else None
    if as_json:
        refusals = [refusal.document() for refusal in draft.refusals]
        starter = {"starter": outside.argv} if outside else {}
        ui.document({**(plan.document() if plan else {}), **starter, "refusals": refusals})
        return
    if plan is not None:
        _show_plan(plan)
        if outside is not None and outside.argv:
            ui.plain("")
            ui.plain(f"{plan.master_host} starts all nodes: {shlex.join(outside.argv)}")
    for refusal in draft.refusals:
        ui.error(refusal)
    if draft.refusals:
        ui.failure("a launch would be refused")


def _show_plan(plan: LaunchPlan) -> None:
    tree = "this tree" if plan.release is None else f"release {plan.release}"
    ui.plain(
        f"job {plan.job}: {plan.engine}, {tree}, world size {plan.world_size}, "
        f"master {plan.master_host} at {plan.master_addr}:{plan.master_port}"
    )
    for node in plan.nodes:
        ui.plain("")
        ui.plain(f"{node.host}: node rank {node.node_rank}, processes: {node.nproc}")
        ui.plain(f"  cd {shlex.quote(node.cwd)}")
        for name, limit in node.ulimit.items():
            ui.plain(f"  # ulimit {name}: {'unlimited' if limit < 0 else limit}")
        for line in node.activate:
            ui.plain(f"  {line}")
        for directory in node.path_prepend:
            ui.plain(f"  export PATH={shlex.quote(directory)}:$PATH")
        for name, value in plan.shown_env(node).items():
            ui.plain(f"  export {name}={shlex.quote(value)}")
        ui.plain(f"  {shlex.join(node.argv)}")


def _show_started(plan: LaunchPlan, as_json: bool) -> None:
    if as_json:
        ui.document(plan.document())
        return
    ui.plain(plan.job)
    ui.note(f"running on {counted(len(plan.nodes), 'node')}; mnt logs -f {plan.job}, mnt stop {plan.job}")
