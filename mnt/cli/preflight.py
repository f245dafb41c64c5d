"""`mnt preflight`: check that the hosts can train together."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Sequence

import click

from mnt import ui
from mnt.cli import completing
from mnt.cli.options import Selection, json_option, mode_option, selection_options
from mnt.cli.preflight_view import show_changes, show_report
from mnt.fleet import Fleet
from mnt.preflight.output import listing
from mnt.preflight.registry import Check, Needs, select
from mnt.preflight.report import Report, changes

_FILE = click.Path(dir_okay=False, path_type=pathlib.Path)


def _show_list(context: click.Context, parameter: click.Parameter, form: str | None) -> None:
    """Print the list and exit: `--list` needs no inventory, so it runs before the inventory is located."""
    if form is None or context.resilient_parsing:
        return
    if form == "json":
        ui.document(listing.as_documents())
    else:
        ui.lines((listing.as_markdown() if form == "markdown" else listing.as_text()).removesuffix("\n"))
    context.exit()


@click.command()
@selection_options
@mode_option
@json_option
@click.option(
    "--only",
    metavar="ID,ID",
    default="",
    shell_complete=completing.checks,
    help="Run only these checks, and those of the login.",
)
@click.option(
    "--skip", metavar="ID,ID", default="", shell_complete=completing.checks, help="Leave out these checks."
)
@click.option("--deep", is_flag=True, help="Also launch a short job: import torch, all-reduce, bandwidth.")
@click.option(
    "--list",
    type=click.Choice(["text", "markdown", "json"]),
    is_flag=False,
    flag_value="text",
    is_eager=True,
    expose_value=False,
    callback=_show_list,
    help="Explain all checks; run none.",
)
@click.option(
    "--watch",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Repeat every SECONDS until interrupted, and show the changes.",
)
@click.option(
    "--junit", type=_FILE, metavar="FILE", help="Also write JUnit XML: one test per check and host."
)
@click.option("--html", type=_FILE, metavar="FILE", help="Also write one self-contained HTML page.")
def preflight(
    selection: Selection,
    as_json: bool,
    only: str,
    skip: str,
    deep: bool,
    watch: float | None,
    junit: pathlib.Path | None,
    html: pathlib.Path | None,
) -> int:
    """Check that the hosts can train together.

    Every host is probed once. Then the facts are compared with the inventory and with each other. The exit
    code is 0 if no check fails, else 1.
    """
    if as_json and watch is not None:
        raise click.UsageError("--watch and --json exclude each other: --json prints one document and ends")
    checks = select(only=_ids(only), skip=_ids(skip), deep=deep)
    with Fleet(selection.hosts) as fleet:
        report, seconds = _look(fleet, selection, checks)
        if as_json:
            ui.document(report.document())
        else:
            show_report(report, seconds)
        _write(report, seconds, junit, html)
        while watch is not None:
            time.sleep(watch)
            before = report
            report, seconds = _look(fleet, selection, checks)
            show_changes(changes(before, report), report)
            _write(report, seconds, junit, html)
    return 0 if report.ok else 1


def _ids(text: str) -> list[str]:
    return [id.strip() for id in text.split(",") if id.strip()]


def _look(fleet: Fleet, selection: Selection, checks: Sequence[Check]) -> tuple[Report, float]:
    """The report, and how many seconds it took."""
    if any(check.needs is Needs.TRIAL for check in checks):
        from mnt.trial.look import look_deep as look
    else:
        from mnt.preflight.look import look

    started = time.monotonic()
    with ui.StatusLine() as line:
        report = look(fleet, selection.inventory, selection.hosts, checks, line.show)
    return report, time.monotonic() - started


def _write(report: Report, seconds: float, junit: pathlib.Path | None, html: pathlib.Path | None) -> None:
    """Write the files. Raises UsageError if a file cannot be written."""
    if junit is not None:
        from mnt.preflight.output.junit import as_junit

        ui.write_file(junit, as_junit(report, seconds))
    if html is not None:
        from mnt.preflight.output.page import as_page

        written = time.strftime("%Y-%m-%d %H:%M:%S %Z")
        ui.write_file(html, as_page(report, written=written, seconds=seconds))
