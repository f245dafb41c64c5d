"""`mnt run`: a command on every host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mnt.cli.options import Selection, json_option, selection_options

if TYPE_CHECKING:
    from mnt.fleet import Timeouts
    from mnt.run.fold import Answer
    from mnt.run.report import HostRun, RunReport
    from mnt.tasks.wrapper import Command

_SECONDS = click.FloatRange(min=0, min_open=True)


@click.command(context_settings={"allow_interspersed_args": False})
@selection_options
@json_option
@click.option("--script", metavar="FILE", help="Run this file of this machine; the rest are its arguments.")
@click.option("--sudo", is_flag=True, help="As root: sudo -n, which never asks for a password.")
@click.option("-f", "--fanout", type=click.IntRange(min=1), default=64, show_default=True, help="At once.")
@click.option("--timeout", type=_SECONDS, help="Seconds for the command on one host; default: none.")
@click.option("--connect-timeout", type=_SECONDS, help="Seconds for each step of logging in; default: 10.")
@click.option("--fail-fast", is_flag=True, help="End it everywhere as soon as one host fails.")
@click.option("-b", "--fold", is_flag=True, help="In the end, hosts with the same output together.")
@click.option("--diff", is_flag=True, help="As -b, but of other hosts only what differs from the most.")
@click.option("--outdir", metavar="DIR", help="Write DIR/HOST.out and DIR/HOST.err too.")
@click.option("-N", "--no-prefix", is_flag=True, help="Leave the host off the lines.")
@click.option(
    "--worker",
    type=click.Choice(["paramiko", "ssh"]),
    default="paramiko",
    show_default=True,
    help="The SSH client; ssh: OpenSSH's own.",
)
@click.argument("words", metavar="[CMD]...", nargs=-1, type=click.UNPROCESSED)
def run(
    selection: Selection,
    as_json: bool,
    script: str | None,
    sudo: bool,
    fanout: int,
    timeout: float | None,
    connect_timeout: float | None,
    fail_fast: bool,
    fold: bool,
    diff: bool,
    outdir: str | None,
    no_prefix: bool,
    worker: str,
    words: tuple[str, ...],
) -> int:
    """Run a command on every host.

    One word is a line for the hosts' /bin/sh: mnt run 'ls | wc -l'. Several are a program and its arguments,
    which reach it as they are, whatever the login shell. Options of mnt come before CMD. What comes on
    standard input, unless it is a terminal, goes to every host.

    Exits with the largest exit code, 255 for a host that could not be reached, 130 when interrupted. The
    hosts that failed are @failed until the next run.
    """
    import sys

    from mnt import ui
    from mnt.fleet import Fleet, HostConnection
    from mnt.fleet.openssh import OpenSshConnection
    from mnt.run import feed
    from mnt.run import outdir as files
    from mnt.run.live import Live
    from mnt.run.session import Order, Outputs
    from mnt.run.session import run as run_everywhere

    if as_json and (fold or diff):
        raise click.UsageError("--json is a form of its own: without -b and --diff")
    names = [host.name for host in selection.hosts]
    order = Order(
        command=_command(words, script, sudo),
        stdin=feed.Source(0) if feed.is_given(0) else None,
        timeout=timeout,
        fail_fast=fail_fast,
    )
    keep = as_json or fold or diff
    directory = None if outdir is None else files.prepare(outdir, names)
    live = None if keep else Live(names, sys.stdout, sys.stderr, prefix=not no_prefix)
    outputs = Outputs(live=live, keep=keep, directory=directory)
    connect = OpenSshConnection if worker == "ssh" else HostConnection
    with Fleet(selection.hosts, fanout=fanout, timeouts=_timeouts(connect_timeout), connect=connect) as fleet:
        report = run_everywhere(fleet, order, outputs, _show_error)
    if live is not None:
        live.close()
    if as_json:
        ui.document(report.document())
    elif keep:
        _show_groups(report, diff=diff)
    _show_end(report)
    _remember(selection.inventory.file, report)
    return report.exit_code


def _command(words: tuple[str, ...], script: str | None, sudo: bool) -> Command:
    from mnt.run.command import from_script, from_words

    if script is not None:
        return from_script(script, words, sudo=sudo)
    if not words:
        raise click.UsageError("what shall be run? CMD, or --script FILE")
    return from_words(words, sudo=sudo)


def _timeouts(seconds: float | None) -> Timeouts:
    from mnt.fleet import Timeouts

    if seconds is None:
        return Timeouts()
    return Timeouts(
        resolve=seconds, connect=seconds, banner=seconds, key_exchange=seconds, authentication=seconds
    )


def _show_error(run: HostRun) -> None:
    from mnt import ui

    if run.error is not None:
        ui.error(run.error)


def _show_groups(report: RunReport, *, diff: bool) -> None:
    """The hosts that ran it to its end, those with one answer together; then what the others had said."""
    from mnt.run.fold import group, majority

    answers = {
        host: (run.exit_code, run.output.digest)
        for host, run in report.runs.items()
        if run.exit_code is not None and run.output is not None
    }
    groups = group(answers)
    if diff and groups:
        _show_diffs(report, majority(groups), groups)
    else:
        for hosts in groups:
            _show_group(report, hosts)
    for host, run in report.runs.items():
        if host not in answers and run.output is not None and (run.output.out.size or run.output.err.size):
            _show_group(report, (host,))


def _show_group(report: RunReport, hosts: tuple[str, ...]) -> None:
    import sys

    from mnt import ui

    run = report.runs[hosts[0]]
    assert run.output is not None
    if run.output.out.size or not run.output.err.size:
        ui.plain(_heading(hosts, run), "cyan")
        ui.block(run.output.out.pieces())
    if run.output.err.size:
        ui.info(_heading(hosts, run))
        ui.block(run.output.err.pieces(), sys.stderr)


def _heading(hosts: tuple[str, ...], run: HostRun) -> str:
    from mnt.inventory.hostlist import fold

    end = f"exit code {run.exit_code}" if run.exit_code else "" if run.exit_code == 0 else "not done"
    return f"==== {fold(hosts)} ({len(hosts)}){end and ': '}{end} ===="


def _show_diffs(report: RunReport, usual: tuple[str, ...], groups: list[tuple[str, ...]]) -> None:
    from mnt import ui
    from mnt.run.fold import diff

    _show_group(report, usual)
    for odd in groups:
        if odd != usual:
            ui.plain(_heading(odd, report.runs[odd[0]]), "cyan")
            ui.block(line + b"\n" for line in diff(_answer(report, usual), _answer(report, odd)))


def _answer(report: RunReport, hosts: tuple[str, ...]) -> Answer:
    from mnt.inventory.hostlist import fold
    from mnt.run.fold import Answer

    run = report.runs[hosts[0]]
    assert run.exit_code is not None
    assert run.output is not None
    return Answer(fold(hosts), run.exit_code, run.output.out.read(), run.output.err.read())


def _show_end(report: RunReport) -> None:
    """Who is not ok, in a form that can be pasted back."""
    import shlex

    from mnt import ui
    from mnt.inventory.hostlist import fold

    for code, hosts in report.by_exit_code().items():
        ui.failure(f"exit code {code}: {fold(hosts)}")
    if report.missing:
        ui.failure(f"not done: {fold(report.missing)}")
    if report.failed:
        count = f"{len(report.failed)} of {len(report.runs)} hosts failed"
        ui.failure(f"{count}: -n {shlex.quote(fold(report.failed))}, or -n @failed")


def _remember(inventory: str, report: RunReport) -> None:
    from mnt import ui
    from mnt.run import failed

    try:
        failed.remember(inventory, report.failed)
    except OSError as error:
        ui.warn(f"-n @failed will not know of this run: {error}")
