"""The output of `mnt preflight` on a terminal."""

from __future__ import annotations

import shlex
import time

from mnt import ui
from mnt.errors import counted
from mnt.facts.trial import Trial
from mnt.inventory.hostlist import fold, group
from mnt.preflight.findings import Finding, Severity
from mnt.preflight.report import Changes, Report, family_table

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "info": "cyan", "unknown": "bright_black"}


def show_report(report: Report, seconds: float) -> None:
    """Show the table, all findings and the verdict."""
    _show_table(report)
    for finding in report.worst_first:
        _show_finding(finding)
    if report.fleet.trial is not None:
        _show_trial(report.fleet.trial)
    ui.plain("")
    hosts = len(report.fleet.hosts)
    ui.plain(
        f"{_verdict(report)}; "
        f"{counted(len(report.checks), 'check')} on {counted(hosts, 'host')} in {seconds:.1f} s",
        _COLOURS[_worst(report)],
    )


def _show_table(report: Report) -> None:
    """Show hosts by family. A narrow terminal gets only the families with findings."""
    table = family_table(report)
    headers = ["HOSTS", *(family.upper() for family in report.families)]
    rows: list[list[str | ui.Cell]] = [
        [hosts, *(ui.Cell(cell.text, _COLOURS[cell.status]) for cell in cells)] for hosts, cells in table
    ]
    if ui.fits(headers, rows):
        ui.table(headers, rows)
        return
    columns = zip(report.families, zip(*(cells for _, cells in table), strict=True), strict=True)
    fine = [family for family, cells in columns if all(cell.status in ("ok", "unknown") for cell in cells)]
    shown = [0, *(i for i, family in enumerate(report.families, 1) if family not in fine)]
    ui.table([headers[i] for i in shown], [[row[i] for i in shown] for row in rows])
    ui.plain(f"nothing wrong in: {', '.join(fine)}", _COLOURS["ok"])


def show_changes(changes: Changes, report: Report) -> None:
    """Show new findings, gone findings and the current verdict; print nothing if nothing has changed."""
    if not changes.new and not changes.gone:
        return
    ui.plain("")
    ui.plain(f"{time.strftime('%H:%M:%S')}  {_verdict(report)}", _COLOURS[_worst(report)])
    for finding in changes.gone:
        ui.plain(f"GONE {finding.check}: {fold(finding.hosts)}: {finding.message}", "green")
    for finding in changes.new:
        _show_finding(finding)


def _verdict(report: Report) -> str:
    failed, warned = report.count(Severity.FAIL), report.count(Severity.WARN)
    verdict = "fit to train" if report.ok else "not fit to train"
    return f"{verdict}: {failed} failed, {counted(warned, 'warning')}"


def _worst(report: Report) -> str:
    return next((each.value for each in (Severity.FAIL, Severity.WARN) if report.count(each)), "ok")


def _show_trial(trial: Trial) -> None:
    """Show the bandwidths, and the network that NCCL really used."""
    if not trial.measurements:
        return
    ui.plain("")
    slowest = max(trial.import_seconds.values(), default=0.0)
    ui.plain(
        f"all-reduce with {trial.backend}, {counted(trial.world_size, 'rank')}; "
        f"import torch took up to {slowest:.1f} s"
    )
    for each in trial.measurements:
        ui.plain(
            f"    {each.bytes / 2**20:>9.3f} MiB  {1000 * each.seconds:>9.2f} ms  {each.bandwidth:>8.3f} GB/s"
        )
    for hosts in group(trial.nccl_lines):
        ui.plain(f"    {fold(hosts)}: {'; '.join(trial.nccl_lines[hosts[0]])}")


def _show_finding(finding: Finding) -> None:
    severity = finding.severity.value
    ui.plain("")
    ui.plain(
        f"{severity.upper()} {finding.check}: {fold(finding.hosts)}: {finding.message}",
        _COLOURS[severity],
    )
    ui.plain(f"    found     {finding.found}")
    ui.plain(f"    expected  {finding.expected}")
    ui.plain(f"    fix       {ui.fix_text(finding.fix)}")
    if finding.playbook is not None:
        ui.plain(f"    or        mnt setup {finding.playbook} -n {shlex.quote(fold(finding.hosts))}")
