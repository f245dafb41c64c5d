"""The command line: one module per command, imported only when the command is used."""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import sys
from typing import NoReturn

import click

from mnt import __version__
from mnt.errors import MntError, UsageError

# command -> (module of mnt.cli, its one-line help). Kept here so that `mnt --help` imports none of them.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("init", "Write an inventory, from what the hosts have."),
    "inventory": ("inventory", "List the inventories, or show the hosts of one."),
    "trust": ("trust", "Check the fingerprints of the hosts, and record their host keys."),
    "ssh-setup": ("ssh_setup", "Set up logins by key, to the hosts and between them."),
    "setup": ("setup", "Bring the hosts to where preflight wants them, by Ansible."),
    "preflight": ("preflight", "Check that the hosts can train together."),
    "net": ("net", "Show each node's training NIC and network environment, with reasons."),
    "hostfile": ("hostfile", "Write the hostfile that DeepSpeed reads."),
    "run": ("run", "Run a command on every host."),
    "push": ("push", "Send the code tree to every host as a new release."),
    "rollback": ("rollback", "Switch all hosts back to an earlier release."),
    "releases": ("releases", "List the releases on the hosts, or remove old ones."),
    "launch": ("launch", "Start a job: the master first, then the workers."),
    "status": ("status", "Show the jobs on the hosts."),
    "logs": ("logs", "Print the output of a job."),
    "fetch": ("fetch", "Bring back what a job wrote, or any files of the hosts."),
    "stop": ("stop", "Stop jobs on all their hosts, and verify that no process is left."),
    "shell": ("shell", "Open a shell on one host, in the current release."),
    "completion": ("completion", "Print what makes a shell complete these commands."),
    "lab": ("lab", "Run throw-away hosts on this machine, for trials and tests."),
}

_MOST_EXIT_CODE = 255  # the system keeps the lowest 8 bits of a larger one: 256 would be a success


class LazyGroup(click.Group):
    """A group that imports a command's module only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(f"mnt.cli.{module}"), module)
        assert isinstance(command, click.Command)  # noqa: S101 - narrows the type
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="mnt")
def cli() -> None:
    """Check, push, launch and stop multi-node training over plain SSH.

    \b
    mnt preflight                     check that the hosts can train together
    mnt push                          send the code tree to every host
    mnt launch --nodes 'node[1-4]'    start a job: the master, then the workers
    mnt stop                          end it on all hosts
    """


def _use_streams() -> None:
    """Prepare the standard streams: writing waits for a slow reader, and a closed stream becomes /dev/null.

    Otherwise a pipe of another program's that does not block would lose output, and a socket could get the
    number of a closed stream. A closed standard output still cannot be written: results must not be lost
    with an exit code of 0.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.set_blocking(descriptor, True)
        except OSError:
            # It gets the lowest free number, which is `descriptor`.
            os.open(os.devnull, os.O_RDONLY if descriptor == 1 else os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode))  # noqa: SIM115 - for the life of the process


def _check_directory() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        message = "the current directory does not exist any more"
        raise UsageError(message, fix="cd to another directory") from None


def main() -> None:
    """Run the command line. Exit with a code of docs/architecture.md, or with the exit code of a job."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C
    _use_streams()
    try:
        _check_directory()
        result = cli.main(prog_name="mnt", standalone_mode=False)
        code = result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except MntError as error:
        from mnt import ui

        ui.error(error)
        code = error.exit_code
    except OSError as error:  # of click's own output: --help, --version, a usage error
        if error.filename is not None:
            raise
        from mnt import ui

        ui.discard(sys.stdout)
        ui.error(ui.unwritable(sys.stdout, error))
        code = 1
    except (KeyboardInterrupt, click.Abort):
        from mnt import ui

        ui.info("mnt: interrupted")
        code = 130
    _exit(code if 0 <= code <= _MOST_EXIT_CODE else _MOST_EXIT_CODE)


def settle() -> None:
    """Ignore Ctrl-C and SIGTERM from now on: what was asked for is done, and only has to be shown."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _exit(code: int) -> NoReturn:
    """Exit with this code, also if a signal comes meanwhile: the result has been shown.

    At its end, Python gives signals with a handler their default action: SIGTERM would be the exit status.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(code))  # while it waits for threads
    atexit.register(settle)
    sys.exit(code)
