"""Runs the steps of a setup one after the other."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mnt.errors import HostError, MntError
from mnt.facts.fleet import FleetFacts
from mnt.fleet import Fleet, Timeouts
from mnt.inventory.hostlist import fold, group
from mnt.network.decision import NetworkDecision
from mnt.paths import state_directory
from mnt.remote.common.files import make_directories, strerror
from mnt.remote.common.owners import check_owners
from mnt.remote.common.refusal import Refused
from mnt.setup import playbooks
from mnt.setup.hosts import ansible_inventory
from mnt.setup.plan import Step, advice
from mnt.setup.play import Played, play


@dataclass(frozen=True)
class Options:
    """How playbooks run; see `play.play`."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    check: bool = False
    become_password: str | None = field(default=None, repr=False)


def run_steps(
    plan: Sequence[Step],
    facts: FleetFacts,
    network: NetworkDecision,
    options: Options,
    *,
    on_task: Callable[[str], None],
    on_done: Callable[[Step, Played, Path], None],
) -> bool:
    """Run the playbooks in order, until one fails: the next ones build on it. Whether all of them succeeded.

    None runs on a host that `mnt` has refused, or could not log in to: Ansible could have other ways there.

    Args:
        on_task: is called with `playbook: task` as a task begins.
        on_done: is called after each playbook, with its result and the file with Ansible's output.

    Raises MntError if that file cannot be made; and as `Fleet` and `play.play`.
    """
    directory = playbooks.directory()
    with Fleet(facts.hosts) as fleet:  # which logs in nowhere
        destinations = {host.name: fleet.connection(host.name).destination for host in facts.hosts}
    refused = {name: error for name, error in facts.errors.items() if not error.logged_in}
    for step in plan:
        hosts = [host for host in facts.hosts if host.name in step.hosts]
        log = _log(step.playbook)

        def tell(task: str, name: str = step.playbook) -> None:
            on_task(f"{name}: {task}")

        played = play(
            playbooks.BY_NAME[step.playbook],
            directory / f"{step.playbook}.yml",
            ansible_inventory(
                facts.inventory, hosts, network.working(), users(facts), destinations, Timeouts(), refused
            ),
            log,
            variables={**facts.inventory.setup, **options.variables},
            check=options.check,
            become_password=options.become_password,
            tell=tell,
        )
        played = with_reasons(played, refused)
        on_done(step, played, log)
        if not played.ok:
            return False
    return True


def with_reasons(played: Played, refused: Mapping[str, HostError]) -> Played:
    """The result with the reasons why `mnt` has not logged in, which Ansible did not see."""
    hosts = {
        name: replace(result, problem=f"{error.phase}: {error.reason}", fix=error.advice)
        if result.unreachable and (error := refused.get(name)) is not None
        else result
        for name, result in played.hosts.items()
    }
    return replace(played, hosts=hosts)


@dataclass(frozen=True)
class Failure:
    """What failed on some hosts, in the same words. `fix`: None: the message must do."""

    hosts: tuple[str, ...]
    problem: str
    fix: str | None


def failures(played: Played, playbook: str, accounts: Mapping[str, str]) -> list[Failure]:
    """What failed, with the way out; equal failures of several hosts are one.

    Args:
        accounts: of `users`.
    """
    alike = {
        host: (result.problem, result.fix, result.unreachable, accounts.get(host, "the user"))
        for host, result in played.hosts.items()
        if result.problem is not None
    }
    found = []
    for hosts in group(alike):
        problem, fix, unreachable, user = alike[hosts[0]]
        text = problem or "no reason given"
        way = fix or advice(text, playbook, host=fold(hosts), user=user, unreachable=unreachable)
        found.append(Failure(hosts, text, way))
    return found


def users(facts: FleetFacts) -> dict[str, str]:
    """Who logs in, by host, where it is known."""
    return {name: said.login.user for name, said in facts.facts.items() if said.login and said.login.user}


def _log(playbook: str) -> Path:
    """A new file for Ansible's output."""
    try:
        directory = state_directory() / "setup"
        make_directories(directory)
        check_owners(os.fspath(directory))
        return _new_file(directory, f"{time.strftime('%Y%m%d-%H%M%S')}-{playbook}")
    except Refused as refusal:
        raise MntError(f"Ansible's output: {refusal.message}", fix=refusal.fix) from None
    except OSError as error:
        raise MntError(
            f"{error.filename}: Ansible's output cannot be kept: {strerror(error)}", fix="set XDG_STATE_HOME"
        ) from None


def _new_file(directory: Path, name: str) -> Path:
    """It never is one that is there: two runs may begin in the same second. Raises OSError."""
    for number in itertools.count(1):
        file = directory / (f"{name}.log" if number == 1 else f"{name}-{number}.log")
        with contextlib.suppress(FileExistsError):
            file.touch(mode=0o600, exist_ok=False)
            return file
    raise AssertionError("there is always another name")
