"""`mnt preflight`: are the hosts fit to train together?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from mnt.cli.options import Selection, json_option, selection_options

if TYPE_CHECKING:
    from mnt.preflight.findings import Finding
    from mnt.preflight.report import Report

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "info": "cyan", "unknown": "bright_black"}


def _show_list(context: click.Context, parameter: click.Parameter, form: str | None) -> None:
    """`--list` needs no inventory: it answers before one is looked for."""
    if form is None or context.resilient_parsing:
        return
    from mnt import ui
    from mnt.preflight import listing

    if form == "json":
        ui.document(listing.as_documents())
    else:
        ui.plain((listing.as_markdown() if form == "markdown" else listing.as_text()).removesuffix("\n"))
    context.exit()


@click.command()
@selection_options
@json_option
@click.option("--only", metavar="ID,ID", default="", help="These checks, and the login that they rest on.")
@click.option("--skip", metavar="ID,ID", default="", help="All checks but these.")
@click.option(
    "--list",
    type=click.Choice(["text", "markdown", "json"]),
    is_flag=False,
    flag_value="text",
    is_eager=True,
    expose_value=False,
    callback=_show_list,
    help="Explain every check, and check nothing.",
)
def preflight(selection: Selection, as_json: bool, only: str, skip: str) -> int:
    """Check that the hosts can train together.

    One look at every host, then the facts are compared: with the inventory, and with each other. Exits with 0
    when nothing fails, with 1 when something does.
    """
    from mnt import ui
    from mnt.fleet import Fleet
    from mnt.preflight.gather import gather_facts
    from mnt.preflight.registry import Needs, select
    from mnt.preflight.report import run_checks

    started = time.monotonic()
    checks = select(only=_ids(only), skip=_ids(skip))
    needs = {check.needs for check in checks}
    with Fleet(selection.hosts) as fleet:
        facts = gather_facts(
            fleet,
            selection.inventory,
            selection.hosts,
            with_mesh=Needs.MESH in needs,
            with_nonces=Needs.NONCES in needs,
            with_reach=Needs.REACH in needs,
        )
    report = run_checks(facts, checks)
    if as_json:
        ui.document(report.document())
    else:
        _show(report, time.monotonic() - started)
    return 0 if report.ok else 1


def _ids(text: str) -> list[str]:
    return [id.strip() for id in text.split(",") if id.strip()]


def _show(report: Report, seconds: float) -> None:
    from mnt import ui
    from mnt.preflight.findings import Severity

    rows: list[list[str | ui.Cell]] = [
        [hosts, *(ui.Cell(cell.text, _COLOURS[cell.status]) for cell in cells)]
        for hosts, cells in report.table()
    ]
    ui.table(["HOSTS", *(family.upper() for family in report.families())], rows)
    for severity in Severity:
        for finding in report.findings:
            if finding.severity is severity:
                _show_finding(finding)
    failed, warned = report.count(Severity.FAIL), report.count(Severity.WARN)
    hosts = len(report.fleet.hosts)
    ui.plain("")
    ui.plain(
        f"{'fit to train' if report.ok else 'not fit to train'}: {failed} failed, {warned} warnings; "
        f"{len(report.checks)} checks on {hosts} host{'s' * (hosts != 1)} in {seconds:.1f} s",
        _COLOURS["fail" if failed else "warn" if warned else "ok"],
    )


def _show_finding(finding: Finding) -> None:
    from mnt import ui
    from mnt.inventory.hostlist import fold
    from mnt.ui.console import clean

    severity = finding.severity.value
    ui.plain("")
    ui.plain(
        clean(f"{severity.upper()} {finding.check}: {fold(finding.hosts)}: {finding.message}"),
        _COLOURS[severity],
    )
    ui.plain(clean(f"    found     {finding.found}"))
    ui.plain(clean(f"    expected  {finding.expected}"))
    ui.plain(clean(f"    fix       {finding.fix}"))
