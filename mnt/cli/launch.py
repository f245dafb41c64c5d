"""`mnt launch`: start a job, and watch it to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

import click

from mnt.cli.options import Selection, grace_option, json_option, selection_options

if TYPE_CHECKING:
    from mnt.fleet import Fleet
    from mnt.launch.jobs import Job
    from mnt.launch.plan import LaunchPlan

ENGINE_NAMES = ("fsdp", "deepspeed")


@click.command(context_settings={"allow_interspersed_args": False})
@selection_options
@json_option
@click.option("--engine", type=click.Choice(ENGINE_NAMES), default="fsdp", show_default=True)
@click.option("--nproc", type=click.IntRange(min=1), help="Processes a node; default: its gpus, or 1.")
@click.option("--master-port", type=click.IntRange(1024, 65535), help="Default: the inventory's.")
@click.option(
    "--env", "assignments", multiple=True, metavar="K[=V]", help="Add a variable; K alone: as it is here."
)
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.option("--detach", is_flag=True, help="Start it and return; mnt status, logs and stop find it again.")
@click.option("--dry-run", is_flag=True, help="Print each node's command and environment, start nothing.")
@click.option("--no-preflight", is_flag=True, help="Start even where a check fails.")
@grace_option
@click.option(
    "--start-timeout", type=click.FloatRange(min=1), default=120, show_default=True, help="Seconds."
)
@click.argument("script", required=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def launch(
    selection: Selection,
    as_json: bool,
    engine: str,
    nproc: int | None,
    master_port: int | None,
    assignments: tuple[str, ...],
    as_module: bool,
    detach: bool,
    dry_run: bool,
    no_preflight: bool,
    grace: float,
    start_timeout: float,
    script: str | None,
    args: tuple[str, ...],
) -> int:
    """Start a job on the hosts: the master (the first) first, then the workers.

    SCRIPT is a path in the pushed tree, by default the engine's own; ARGS go to it untouched. Options of mnt
    come before SCRIPT. Without --detach the output of every node is shown until the job ends, and Ctrl-C
    stops it everywhere.
    """
    import os
    from dataclasses import replace

    from mnt import ui
    from mnt.fleet import Fleet
    from mnt.launch.engines import ENGINES
    from mnt.launch.facts import launch_facts
    from mnt.launch.jobs import new_job_id
    from mnt.launch.plan import LaunchOptions, parse_env, plan_launch

    if as_module and script is None:
        raise click.UsageError("-m needs the name of a module")
    options = LaunchOptions(
        engine=ENGINES[engine],
        script=None if as_module else script,
        module=script if as_module else None,
        args=args,
        nproc=nproc,
        env=parse_env(assignments, os.environ),
        grace=grace,
    )
    inventory = selection.inventory
    if master_port is not None:
        inventory = replace(inventory, network=replace(inventory.network, master_port=master_port))
    with Fleet(selection.hosts) as fleet:
        judged = not (no_preflight or dry_run)
        facts, network = launch_facts(fleet, inventory, selection.hosts, preflight=judged)
        plan = plan_launch(inventory, selection.hosts, network, facts, options, job=new_job_id())
        for warning in plan.warnings:
            ui.warn(warning)
        if dry_run:
            _show_plan(plan, as_json)
            return 0
        offsets = {name: node.clock_offset for name, node in facts.items()}
        return _run(fleet, selection, plan, offsets, start_timeout, detach, as_json)


def _run(
    fleet: Fleet,
    selection: Selection,
    plan: LaunchPlan,
    clock_offsets: dict[str, float],
    start_timeout: float,
    detach: bool,
    as_json: bool,
) -> int:
    """Start the plan; unless detached watch it, and stop it everywhere when interrupted."""
    import sys

    from mnt import ui
    from mnt.launch.backends import ssh
    from mnt.launch.signals import HangUp, hang_up_guard

    with hang_up_guard() as guard:
        try:
            ssh.start(fleet, plan, timeout=start_timeout, tell=ui.note)
            if detach:
                _show_started(plan, as_json)
                return 0
            guard.watch()
            job = _watch(fleet, plan, clock_offsets, sys.stderr if as_json else sys.stdout)
        except HangUp:
            return 129
        except BrokenPipeError:
            ui.note(f"nobody reads the output any more; the job goes on: mnt logs -f {plan.job}")
            raise
        except KeyboardInterrupt:
            guard.unwatch()
            _stop_everywhere(selection, plan)
            raise
    _show_end(job, as_json)
    return job.exit_code or 0


def _watch(fleet: Fleet, plan: LaunchPlan, clock_offsets: dict[str, float], output: TextIO) -> Job:
    """Show what the nodes write until the job has ended."""
    from mnt import ui
    from mnt.launch.watch import Watch

    lines = ui.HostLines([node.host for node in plan.nodes], output, prefix=len(plan.nodes) > 1)
    job = Watch(plan, output=lines.feed, tell=ui.note).follow(fleet, clock_offsets)
    lines.close()
    return job


def _stop_everywhere(selection: Selection, plan: LaunchPlan) -> None:
    """End an interrupted job; a second interrupt leaves it to `mnt stop`."""
    from mnt import ui
    from mnt.cli.stop import show_stopped
    from mnt.fleet import Fleet
    from mnt.launch.backends import ssh
    from mnt.launch.stop import stop_document

    ui.info(f"\ninterrupted: stopping {plan.job} on every node")
    try:
        with Fleet(selection.hosts) as fleet:
            for host, outcome in ssh.take_back(fleet, plan).items():
                show_stopped(host, stop_document(outcome))
    except KeyboardInterrupt:
        ui.warn(f"not waiting: {plan.job} may still run; mnt stop {plan.job} ends it")
        raise


def _show_plan(plan: LaunchPlan, as_json: bool) -> None:
    import shlex

    from mnt import ui

    if as_json:
        ui.document(plan.document())
        return
    ui.plain(
        f"job {plan.job}: {plan.engine}, release {plan.release}, world size {plan.world_size}, "
        f"master {plan.master_host} at {plan.master_addr}:{plan.master_port}"
    )
    for node in plan.nodes:
        ui.plain(f"\n{node.host}: node rank {node.node_rank}, processes: {node.nproc}")
        ui.plain(f"  cd {shlex.quote(node.cwd)}")
        for directory in node.path_prepend:
            ui.plain(f"  export PATH={shlex.quote(directory)}:$PATH")
        for name, value in node.env.items():
            ui.plain(f"  export {name}={shlex.quote(value)}")
        ui.plain(f"  {shlex.join(node.argv)}")


def _show_started(plan: LaunchPlan, as_json: bool) -> None:
    from mnt import ui

    if as_json:
        ui.document(plan.document())
        return
    ui.plain(plan.job)
    ui.note(f"running on {_nodes(len(plan.nodes))}; mnt logs -f {plan.job}, mnt stop {plan.job}")


def _show_end(job: Job, as_json: bool) -> None:
    from mnt import ui

    if as_json:
        ui.document(job.document())
    if job.state == "finished":
        ui.success(f"job {job.job} finished on {_nodes(len(job.nodes))}")
        return
    culprit = job.culprit
    if culprit is not None and culprit.traceback:
        ui.info(culprit.traceback.rstrip())
    why = f": {culprit.sentence()}" if culprit else ""
    ui.failure(f"job {job.job} {job.state}{why}")


def _nodes(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"
