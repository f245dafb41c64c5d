"""`mnt net`: the training NIC and network environment of each node, with reasons."""

from __future__ import annotations

import click

from mnt import ui
from mnt.cli.options import Selection, json_option, mode_option, selection_options
from mnt.errors import MntError, UsageError
from mnt.fleet import Fleet
from mnt.inventory.hostlist import brief
from mnt.inventory.spelling import did_you_mean
from mnt.network.nic import NicChoice
from mnt.network.overview import NetworkOverview, NodeOverview, network_overview
from mnt.preflight.look import first_look


@click.command()
@selection_options
@mode_option
@json_option
@click.option("--shell", "node", metavar="NODE", help="Print export lines for one host.")
@click.option("--deep", is_flag=True, help="Also launch a short job, and show which network it used.")
def net(selection: Selection, as_json: bool, node: str | None, deep: bool) -> int:
    """Show each node's training NIC and network environment, with reasons.

    The output also predicts what NCCL would choose by itself, in its documented order. With --deep it also
    shows which network NCCL (or gloo on hosts without GPUs) really used. The job is not launched if a check
    of preflight fails.

    The exit code is 1 if a host cannot be reached or lacks what the mode needs; with --deep also if the job
    was not launched, failed, or used another network than the one that was set.
    """
    if node is not None:
        if deep:
            raise click.UsageError("--shell and --deep exclude each other: --shell prints only export lines")
        names = [host.name for host in selection.hosts]
        if node not in names:
            raise UsageError(
                f"--shell {node}: not one of the selected hosts{did_you_mean(node, names)}",
                fix=f"use one of {brief(names)}",
            )
    with Fleet(selection.hosts) as fleet:
        if deep:
            from mnt.trial.look import look_deep, trial_checks

            with ui.StatusLine() as status:
                seen = look_deep(fleet, selection.inventory, selection.hosts, trial_checks(), status.show)
            facts, network = seen.fleet, seen.network
        else:
            facts, network = first_look(fleet, selection.inventory, selection.hosts)
    report = network_overview(facts, network)
    if as_json:
        ui.document(report.document())
    elif node is not None:
        if node in report.errors:
            raise report.errors[node]
        if obstacle := report.nodes[node].network.obstacle:
            raise MntError(f"{node}: {obstacle[0]}", fix=obstacle[1])
        for line in report.nodes[node].shell():
            ui.plain(line)
        return 0
    else:
        _show(report)
    return 0 if report.ok else 1


def _show(report: NetworkOverview) -> None:
    ui.plain(f"mode {report.decision.mode} ({report.decision.reason})")
    for node in report.nodes.values():
        ui.plain("")
        _show_node(node)
    for error in report.errors.values():
        ui.plain("")
        ui.error(error)
    trial = report.fleet.trial
    if trial is not None and trial.problem is not None:
        message, fix = trial.problem
        ui.error(MntError(f"--deep: {message}", fix=fix))


def _show_node(node: NodeOverview) -> None:
    nic = node.network.nic
    if isinstance(nic, NicChoice):
        ui.plain(f"{node.host}: {nic.interface.name} {nic.address} ({nic.reason})")
    if node.problem is not None:
        message, fix = node.problem
        colour = "yellow" if node.status == "waiting" else "red"
        ui.plain(f"{node.host}: {message}", colour)
        ui.plain(f"  fix: {ui.fix_text(fix)}")
    if node.variables:
        ui.table(
            ["  VARIABLE", "VALUE", "REASON"],
            [[f"  {variable.name}", variable.value, variable.reason] for variable in node.variables],
        )
    ui.plain(f"  NCCL by itself, expected: {node.expected} ({node.expected.reason})")
    if node.used is not None:
        verdict, colour = ("not as set", "red") if node.differences else ("as set", "green")
        ui.plain(f"  {node.used.backend} really used, {verdict}: {node.used}", colour)
        for line in node.used.evidence:
            ui.plain(f"    {line}")
    for difference in node.differences:
        ui.plain(f"    {difference}", "red")
    for conflict in node.conflicts:
        colour = "yellow" if conflict.harmful else "cyan"
        ui.plain(f"  {conflict.variable}: {conflict.message}", colour)
        fix = ui.fix_text(conflict.fix)
        ui.plain(f"    found {conflict.found}, expected {conflict.expected}; fix: {fix}")
