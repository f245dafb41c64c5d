"""`mnt run`: run a command on every host."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Sequence
from contextlib import ExitStack

import click

from mnt import ui
from mnt.cli.options import Selection, json_option, selection_options
from mnt.errors import MntError, OutputError, counted
from mnt.fleet import Fleet, HostConnection, Timeouts
from mnt.fleet.processes import OpenSshConnection
from mnt.inventory.hostlist import fold, group
from mnt.run import failed, feed
from mnt.run.command import from_script, from_words
from mnt.run.differences import Answer, Budget, diff
from mnt.run.outputs import KEPT_MIB, Outputs, prepare
from mnt.run.session import run as run_everywhere
from mnt.run.summary import HostRun, RunSummary
from mnt.tasks.wrapper import Command

_SECONDS = click.FloatRange(min=0, min_open=True)


class _RunCommand(click.Command):
    """The options end at the file of --script, as at the first word of CMD."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = _after_script(args, {name for each in self.params for name in _with_value(each)})
        if end is not None and args[end : end + 1] != ["--"]:
            args = [*args[:end], "--", *args[end:]]
        return super().parse_args(ctx, args)


def _with_value(parameter: click.Parameter) -> list[str]:
    """The names of an option that takes a value."""
    return parameter.opts if isinstance(parameter, click.Option) and not parameter.is_flag else []


def _after_script(args: Sequence[str], with_value: Collection[str]) -> int | None:
    """The index after the file of --script; None: it is not among the options before CMD."""
    index = 0
    while index < len(args) and args[index].startswith("-") and args[index] not in ("-", "--"):
        word = args[index]
        if word.startswith("--script="):
            return index + 1
        if word == "--script":
            return index + 2
        if word.startswith("--"):
            index += 1 if "=" in word or word not in with_value else 2
        else:  # -bn node1, -nnode1
            valued = next((at for at in range(1, len(word)) if f"-{word[at]}" in with_value), len(word))
            index += 2 if valued == len(word) - 1 else 1
    return None


@click.command(cls=_RunCommand, context_settings={"allow_interspersed_args": False})
@selection_options
@json_option
@click.option(
    "--script", metavar="FILE", help="Run this local file on the hosts; what follows are its arguments."
)
@click.option("--sudo", is_flag=True, help="Run as root with sudo -n, which never asks for a password.")
@click.option(
    "-f",
    "--fanout",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="How many hosts run the command at the same time.",
)
@click.option("--timeout", type=_SECONDS, help="Seconds for the command on one host; default: no limit.")
@click.option(
    "--connect-timeout", type=_SECONDS, help="Seconds for each step of the login; default: 10 or 15."
)
@click.option("--fail-fast", is_flag=True, help="End the command on all hosts as soon as one host fails.")
@click.option(
    "-b",
    "--fold",
    is_flag=True,
    help="At the end, print the output once per group of hosts with equal output.",
)
@click.option("--diff", is_flag=True, help="Like -b, but print other groups as a diff against the largest.")
@click.option("--outdir", metavar="DIR", help="Also write DIR/HOST.out and DIR/HOST.err.")
@click.option("-N", "--no-prefix", is_flag=True, help="Print lines without the name of the host.")
@click.option(
    "--worker",
    type=click.Choice(["paramiko", "ssh"]),
    default="paramiko",
    show_default=True,
    help="The SSH client; ssh is OpenSSH.",
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

    One word is a line for the hosts' /bin/sh: mnt run 'ls | wc -l'. Several words are a program and its
    arguments, which are passed on unchanged with any login shell. Put the options of mnt before CMD. Standard
    input is sent to every host, unless it is a terminal.

    The exit code is the largest one of the hosts, 255 if a host could not be reached, 130 if interrupted.
    Until the next run, -n @failed selects the hosts that failed.
    """
    if as_json and (fold or diff):
        raise click.UsageError("--json excludes -b and --diff")
    names = [host.name for host in selection.hosts]
    command = _command(words, script, sudo)
    keep = as_json or fold or diff
    connect = OpenSshConnection if worker == "ssh" else HostConnection
    with ExitStack() as opened:
        directory = None if outdir is None else prepare(outdir, names, opened)
        out, err = (ui.HostLines(names, stream, prefix=not no_prefix) for stream in (sys.stdout, sys.stderr))
        outputs = Outputs(live=None if keep else (out, err), keep=keep, directory=directory)
        stdin = feed.Source(0) if feed.is_given(0) else None
        fleet = opened.enter_context(
            Fleet(selection.hosts, fanout=fanout, timeouts=_timeouts(connect_timeout), connect=connect)
        )
        summary = run_everywhere(
            fleet, command, outputs, _show_error, stdin=stdin, timeout=timeout, fail_fast=fail_fast
        )
    if as_json:
        ui.long_document(summary.overview(), "hosts", summary.documents())
    elif keep:
        _show_groups(summary, diff=diff)
    _show_end(summary)
    saved = _remember(selection.inventory.file, summary)
    return summary.exit_code or (0 if saved else 1)


def _command(words: tuple[str, ...], script: str | None, sudo: bool) -> Command:
    if script is not None:
        return from_script(script, words, sudo=sudo)
    if not words:
        raise click.UsageError("nothing to run: give CMD, or --script FILE")
    return from_words(words, sudo=sudo)


def _timeouts(seconds: float | None) -> Timeouts:
    if seconds is None:
        return Timeouts()
    return Timeouts(
        resolve=seconds, connect=seconds, banner=seconds, key_exchange=seconds, authentication=seconds
    )


def _show_error(run: HostRun) -> None:
    if run.error is not None:
        ui.error(run.error)


def _show_groups(summary: RunSummary, *, diff: bool) -> None:
    """Show each group of hosts with the same answer, then the output of hosts that did not run to the end."""
    answers = {
        host: (run.exit_code, run.output.digest)
        for host, run in summary.runs.items()
        if run.exit_code is not None and run.output is not None
    }
    groups = group(answers)
    if diff and groups:
        _show_diffs(summary, max(groups, key=len), groups)  # among equals, the first
    else:
        for hosts in groups:
            _show_group(summary, hosts)
    for host, run in summary.runs.items():
        if host not in answers and run.output is not None and (run.output.out.size or run.output.err.size):
            _show_group(summary, (host,))


def _show_group(summary: RunSummary, hosts: tuple[str, ...]) -> None:
    run = summary.runs[hosts[0]]
    assert run.output is not None  # noqa: S101 - narrows the type
    if run.output.out.size or not run.output.err.size:
        ui.plain(_heading(hosts, run), "cyan")
        ui.block(run.output.out.pieces())
    if run.output.err.size:
        ui.info(_heading(hosts, run))
        ui.block(run.output.err.pieces(), sys.stderr)


def _heading(hosts: tuple[str, ...], run: HostRun) -> str:
    end = f"exit code {run.exit_code}" if run.exit_code else "" if run.exit_code == 0 else "not done"
    return f"==== {fold(hosts)} ({len(hosts)}){end and ': '}{end} ===="


def _show_diffs(summary: RunSummary, usual: tuple[str, ...], groups: list[tuple[str, ...]]) -> None:
    _show_group(summary, usual)
    budget = Budget(len(groups) - 1)
    for odd in groups:
        if odd != usual:
            ui.plain(_heading(odd, summary.runs[odd[0]]), "cyan")
            ui.block(line + b"\n" for line in diff(_answer(summary, usual), _answer(summary, odd), budget))


def _answer(summary: RunSummary, hosts: tuple[str, ...]) -> Answer:
    run = summary.runs[hosts[0]]
    assert run.exit_code is not None  # noqa: S101 - narrows the type
    assert run.output is not None  # noqa: S101 - narrows the type
    return Answer(fold(hosts), run.exit_code, run.output.out.read(), run.output.err.read())


def _show_end(summary: RunSummary) -> None:
    """Show the hosts whose output was cut, and the failed hosts, in a form that can be pasted."""
    if summary.cut:
        ui.warn(
            f"{fold(summary.cut)}: only the first {KEPT_MIB} MiB of stdout and of stderr are kept; "
            "--outdir writes all"
        )
    for code, hosts in summary.by_exit_code().items():
        ui.failure(f"exit code {code}: {fold(hosts)}")
    if summary.missing:
        ui.failure(f"not done: {fold(summary.missing)}")
    if summary.failed:
        count = f"{len(summary.failed)} of {counted(len(summary.runs), 'host')} failed"
        ui.failure(f"{count}: -n {shlex.quote(fold(summary.failed))}, or -n @failed")


def _remember(inventory: str, summary: RunSummary) -> bool:
    """Whether `@failed` says what is true of this run."""
    try:
        failed.remember(inventory, summary.failed)
    except OutputError as error:
        ui.error(error)
        return False
    except MntError as error:
        ui.warn(f"the failed hosts could not be saved for -n @failed: {error}")
    return True
