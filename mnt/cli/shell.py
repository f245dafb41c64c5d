"""`mnt shell`: a shell on one host, where a job would run."""

from __future__ import annotations

import posixpath
import subprocess
import sys

import click

from mnt import ui
from mnt.cli import completing
from mnt.cli.options import Selection, selection_options
from mnt.errors import HostError, UsageError
from mnt.fleet import Fleet
from mnt.fleet.processes import OpenSshConnection
from mnt.inventory.hostlist import brief
from mnt.inventory.model import Host
from mnt.inventory.spelling import did_you_mean
from mnt.launch import run
from mnt.launch.backends import DEFAULT, backend_named
from mnt.launch.backends.api import Request, Reservation, new_job_id
from mnt.launch.facts import Untrusted
from mnt.launch.plan import LaunchOptions
from mnt.launch.shell import shell_of, shell_without_plan
from mnt.tasks.push import find_place


@click.command()
@selection_options
@click.argument("host", required=False, shell_complete=completing.hosts)
def shell(selection: Selection, host: str | None) -> int:
    """Open a shell on HOST (default: the first host), in the current release.

    The interpreter's directory comes first on PATH, and the environment is that of a job on this node, with
    its network variables, but without secrets. OpenSSH logs in, as with `mnt run --worker ssh`.
    """
    if not sys.stdin.isatty():
        raise UsageError("a shell needs a terminal", fix="mnt run -n HOST CMD runs a command without one")
    target = _named(selection, host)
    command = _command(selection, target)
    with Fleet([target], connect=OpenSshConnection) as fleet:
        connection = fleet.connection(target.name)
        assert isinstance(connection, OpenSshConnection)  # noqa: S101 - narrows the type
        try:
            return subprocess.call(connection.words(command, terminal=True))
        except FileNotFoundError:
            raise HostError(
                target.name, "connect", "there is no ssh here", fix="install OpenSSH's client"
            ) from None


def _named(selection: Selection, name: str | None) -> Host:
    """The host of that name, or the first. Raises UsageError."""
    hosts = {host.name: host for host in selection.hosts}
    if name is None:
        return selection.hosts[0]
    if name not in hosts:
        hint = did_you_mean(name, list(hosts))
        raise UsageError(
            f"{name}: not one of the selected hosts{hint}", fix=f"use one of {brief(list(hosts))}"
        )
    return hosts[name]


def _command(selection: Selection, target: Host) -> str:
    """The command for the target's login shell; a warning says why no job can be planned there."""
    backend, request = backend_named(DEFAULT), Request(new_job_id())
    with backend.open_fleet(selection.hosts) as fleet:
        draft = run.draft(
            fleet,
            backend,
            selection.inventory,
            Reservation(selection.hosts),
            request,
            LaunchOptions(),
            preflight=False,
        )
        found = fleet.run_each(find_place, {} if draft.planned else {target.name: ()}).get(target.name)
    if draft.planned is not None:
        return shell_of(next(node for node in draft.planned.plan.nodes if node.host == target.name))
    for refusal in draft.refusals:
        ui.warn(f"no job can be planned, so the network's variables are not set: {refusal.message}")
    assert found is not None  # noqa: S101 - narrows the type
    if found.error is not None:
        ui.warn(f"the shell is in your home: {found.error}")
    trusted = not isinstance(draft.error, Untrusted)  # else what is typed could be another user's
    directory = posixpath.dirname(target.python[0]) if trusted else ""
    return shell_without_plan(found.value, target.env, [directory] if directory else [], target.activate)
