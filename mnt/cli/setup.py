"""`mnt setup`: bring hosts to where preflight wants them, by Ansible."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from mnt import ui
from mnt.cli import completing
from mnt.cli.options import Selection, json_option, selection_options
from mnt.errors import UsageError
from mnt.fleet import Fleet
from mnt.fleet.login.terminal import agreed, ask_secret
from mnt.inventory import playbook_variables
from mnt.inventory.hostlist import brief, fold, sentences
from mnt.preflight.findings import Severity
from mnt.preflight.look import first_look, look
from mnt.preflight.registry import select as select_checks
from mnt.preflight.report import Report
from mnt.setup import playbooks
from mnt.setup.plan import Step, check_given, steps
from mnt.setup.play import Played
from mnt.setup.playbooks import Playbook
from mnt.setup.run import Options, failures, run_steps, users

_COLOURS = {"ok": "green", "changed": "yellow", "failed": "red", "unreachable": "red", "stopped": "red"}


def _show_list(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    """Print the list and exit; it needs no inventory."""
    if wanted and not context.resilient_parsing:
        ui.table(["PLAYBOOK", "WHAT IT BRINGS"], [[each.name, each.summary] for each in playbooks.PLAYBOOKS])
        context.exit()


@click.command()
@selection_options
@json_option
@click.argument("names", metavar="[PLAYBOOK]...", nargs=-1, shell_complete=completing.playbooks)
@click.option("--check", is_flag=True, help="Change nothing; say where something would be changed.")
@click.option("-K", "--ask-become-pass", is_flag=True, help="Ask for your password for sudo on the hosts.")
@click.option(
    "-e", "--extra-var", "extra", metavar="KEY=VALUE", multiple=True, help="Set a variable of the playbooks."
)
@click.option("--debs", metavar="DIR", help="Debian packages for hosts without a way to a mirror.")
@click.option("--wheelhouse", metavar="DIR", help="Python packages for hosts without a way to an index.")
@click.option("-y", "--yes", is_flag=True, help="Run what preflight asks for without a question.")
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_show_list, help="List the playbooks."
)
def setup(
    selection: Selection,
    as_json: bool,
    names: tuple[str, ...],
    check: bool,
    ask_become_pass: bool,
    extra: tuple[str, ...],
    debs: str | None,
    wheelhouse: str | None,
    yes: bool,
) -> int:
    """Run Ansible playbooks on the hosts, with the inventory as it is; default: what preflight asks for.

    Most need root on the hosts, by sudo. A second run changes nothing. Ansible's whole output is kept in a
    file. The exit code is 1 if a host failed, or you did not agree.
    """
    chosen = playbooks.select(names)
    variables = _variables(extra, chosen, debs=debs, wheelhouse=wheelhouse)
    check_given(chosen, {**selection.inventory.setup, **variables}, selection.hosts)
    with Fleet(selection.hosts) as fleet, ui.StatusLine() as status:
        report = None
        if chosen:
            facts, network = first_look(fleet, selection.inventory, selection.hosts, status.show)
            plan = [Step(each.name, tuple(host.name for host in selection.hosts), ()) for each in chosen]
        else:
            report = look(fleet, selection.inventory, selection.hosts, select_checks(), status.show)
            facts, network, plan = report.fleet, report.network, steps(report)
    if report is not None and not plan:
        return _nothing_to_run(report, as_json, check)
    if not chosen:
        if not as_json:
            _show_plan(plan)
        if not (yes or check or _agreed(may_ask=not as_json)):
            ui.info("nothing is run")
            return 1
    asked = [host.name for host in selection.hosts if any(host.name in step.hosts for step in plan)]
    options = Options(variables, check, _password(asked) if ask_become_pass else None)
    done: dict[str, Played] = {}

    def show(step: Step, played: Played, log: Path) -> None:
        done[step.playbook] = played
        status.show("")
        if not as_json:
            _show(step.playbook, played, users(facts), log, check=check)
            what = "what would change, as a diff, is in Ansible's output" if check else "Ansible's output"
            ui.info(f"{what}: {log}")

    with ui.StatusLine() as status:
        ok = run_steps(plan, facts, network, options, on_task=status.show, on_done=show)
    if as_json:
        ui.document(_document(ok, done, check=check))
    return 0 if ok else 1


def _nothing_to_run(report: Report, as_json: bool, check: bool) -> int:
    """Say so, and what no playbook mends; 1 if there is such a failure."""
    left = [finding for finding in report.findings if finding.severity is Severity.FAIL]
    if as_json:
        ui.document(_document(not left, {}, check=check))
    if not left:
        ui.success("preflight asks for nothing that a playbook brings")
        return 0
    what = "; ".join(f"{finding.check}: {brief(finding.hosts)}" for finding in left)
    ui.failure(f"no playbook mends what preflight finds ({what})", "mnt preflight")
    return 1


def _variables(extra: Sequence[str], chosen: Sequence[Playbook], **directories: str | None) -> dict[str, Any]:
    """Raises UsageError for what is no variable, or no value of one, and for a missing directory."""
    found: dict[str, Any] = {}
    for text in extra:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            message = f"-e {shlex.quote(text)}: expected KEY=VALUE"
            raise UsageError(message, fix="name a variable and its value, as in -e nofile=65536")
        if problem := playbook_variables.unknown(name) or playbook_variables.misfit(name, value):
            raise UsageError(f"-e {shlex.quote(name)}: {problem}", fix=_variables_of(chosen))
        found[name] = value
    for name, place in directories.items():
        if place is not None:
            if not os.path.isdir(place):
                message = f"--{name} {shlex.quote(place)}: there is no such directory"
                raise UsageError(message, fix="name a directory of this machine that has the packages")
            found[name] = os.path.abspath(place)
    return found


def _variables_of(chosen: Sequence[Playbook]) -> str:
    """Where to find the variables."""
    named = [f"{each.name} has {', '.join(playbook_variables.VARIABLES[each.name])}" for each in chosen]
    return "; ".join(["correct it", *named, "docs/setup.md has them all"])


def _show_plan(plan: Sequence[Step]) -> None:
    ui.table(
        ["PLAYBOOK", "HOSTS", "BECAUSE OF"],
        [[step.playbook, fold(step.hosts), ", ".join(step.checks)] for step in plan],
    )


def _agreed(*, may_ask: bool) -> bool:
    """Raises UsageError if nobody can be asked."""
    if not may_ask:
        raise UsageError("nothing is run: --json asks nothing", fix="add --yes")
    return agreed("Run these?", otherwise="nothing is run")


def _password(hosts: Sequence[str]) -> str:
    """Of the user, for all of these hosts. Raises UsageError if there is no terminal."""
    given = ask_secret(f"Password for sudo on {fold(hosts)}: ")
    if not given:
        raise UsageError("--ask-become-pass: no password was given", fix="type it at a terminal")
    return given


def _show(name: str, played: Played, accounts: Mapping[str, str], log: Path, *, check: bool) -> None:
    """Its hosts, what it says of them, and what failed: equal lines of several hosts once."""
    words = {"changed": "would change"} if check else {}
    rows: list[list[str | ui.Cell]] = [
        [
            name,
            host,
            ui.Cell(words.get(result.status, result.status), _COLOURS[result.status]),
            str(result.ok),
            str(result.changed),
            str(result.skipped),
        ]
        for host, result in played.hosts.items()
    ]
    ui.table(["PLAYBOOK", "HOST", "STATUS", "TASKS", "CHANGED", "SKIPPED"], rows)
    said = [(host, line) for host, result in played.hosts.items() for line in dict.fromkeys(result.reports)]
    for sentence in sentences(said):
        ui.plain(sentence)
    again = f"read {shlex.quote(os.fspath(log))}; then run it again: mnt setup {name}"
    if played.error is not None:
        ui.failure(f"{name}: {played.error}", again)
    for failed in failures(played, name, accounts):
        way = failed.fix or f"{again} -n {shlex.quote(fold(failed.hosts))}"
        ui.failure(f"{fold(failed.hosts)}: {failed.problem}", way)


def _document(ok: bool, done: Mapping[str, Played], *, check: bool) -> dict[str, Any]:
    return {
        "ok": ok,
        "check": check,
        "playbooks": {
            name: {
                "ok": played.ok,
                "error": played.error,
                "hosts": {
                    host: {
                        "status": result.status,
                        "ok": result.ok,
                        "changed": result.changed,
                        "skipped": result.skipped,
                        "problem": result.problem,
                        "reports": result.reports,
                    }
                    for host, result in played.hosts.items()
                },
            }
            for name, played in done.items()
        },
    }
