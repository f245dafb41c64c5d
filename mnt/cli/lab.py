"""`mnt lab`: throw-away hosts on this machine."""

from __future__ import annotations

import os
import time

import click

from mnt import ui
from mnt.cli.options import json_option
from mnt.errors import UsageError
from mnt.lab import spec, store, system, terminal
from mnt.lab.lab import Lab, describe_labs
from mnt.lab.lab import down as take_down

name_option = click.option(
    "--name",
    default="default",
    show_default=True,
    metavar="NAME",
    help="Name of the lab; several labs can run at the same time.",
)


@click.group()
def lab() -> None:
    """Run throw-away hosts on this machine, for trials and tests. Needs root.

    Each host has its own namespaces, file system and sshd; see docs/lab.md.
    """


@lab.command()
@click.argument("count", type=int, default=4, metavar="[N]")
@click.option("--nics", metavar="LIST", help="Names of the training NICs, assigned in turn: eth0,ens3f0.")
@click.option("--rate", metavar="RATE", help="Limit each training link in both directions: 400mbit.")
@click.option("--python", metavar="PATH", help="The interpreter for training: a path on the hosts.")
@click.option(
    "--gpus",
    metavar="auto|N",
    help="Deal this machine's GPUs, or N of them, out to the hosts; default: none.",
)
@click.option("--shared-home", is_flag=True, help="One home directory for all hosts, as over NFS.")
@name_option
def up(
    count: int,
    nics: str | None,
    rate: str | None,
    python: str | None,
    gpus: str | None,
    shared_home: bool,
    name: str,
) -> None:
    """Start a lab of N hosts (default: 4)."""
    started = time.monotonic()
    request = spec.LabRequest(
        name=name,
        count=count,
        nics=spec.parse_nics(nics) if nics is not None else spec.DEFAULT_NICS,
        rate=spec.parse_rate(rate) if rate is not None else None,
        shared_home=shared_home,
        gpus=0 if gpus is None else spec.parse_gpus(gpus, system.count_gpus()),
    )
    running = Lab.up(request, python=python)
    seconds = time.monotonic() - started
    ui.success(f"lab {name}: {count} host{'s' if count > 1 else ''} up in {seconds:.1f} s")
    ui.note(f"inventory: {running.inventory_path}")


@lab.command()
@json_option
def status(as_json: bool) -> None:
    """Show the labs and their hosts."""
    labs = describe_labs()
    if as_json:
        ui.document({"labs": labs})
        return
    if not labs:
        ui.info("no lab is up")
    for entry in labs:
        ui.plain(f"lab {entry['lab']}: {entry['state']}")
        if entry["hosts"]:
            headers = ("HOST", "STATE", "PID", "SSH", "TRAINING", "NIC")
            keys = ("host", "state", "pid", "address", "training", "nic")
            ui.table(headers, [[str(host[key] or "-") for key in keys] for host in entry["hosts"]])


@lab.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--user", is_flag=True, help="Run as the ordinary user, not as root.")
@name_option
@click.argument("host")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="CMD...")
def exec_(user: bool, name: str, host: str, command: tuple[str, ...]) -> int:
    """Run CMD inside HOST, without SSH, and exit with its exit code."""
    system.require_root()
    target = Lab.find(name).host(host)
    argv = target.command(command[1:] if command[0] == "--" else command, user=user)
    if user:
        return terminal.run_apart(argv, target.environment(user=True))
    os.execvpe(argv[0], argv, target.environment())  # noqa: S606 - it becomes the command


@lab.command()
@name_option
@click.option("--all", "everything", is_flag=True, help="Remove all labs.")
@click.pass_context
def down(context: click.Context, name: str, everything: bool) -> None:
    """Remove a lab, even one whose start was interrupted."""
    named = context.get_parameter_source("name") is not click.core.ParameterSource.DEFAULT
    if everything and named:
        raise UsageError("--name and --all exclude each other")
    names = store.names() if everything else [name]
    if not names:
        ui.info("no lab is up")
    for each in names:
        if take_down(each):
            ui.success(f"lab {each} is gone")
        else:
            ui.info(f"no lab {each}")
