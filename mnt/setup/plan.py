"""What to run on which hosts, from the findings of preflight; and the way out of what fails. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mnt.errors import UsageError
from mnt.inventory.hostlist import brief
from mnt.inventory.model import Host
from mnt.preflight.findings import Severity
from mnt.preflight.report import Report
from mnt.setup.playbooks import PLAYBOOKS, Playbook


@dataclass(frozen=True)
class Step:
    """A playbook, the hosts to run it on, and the checks that ask for it."""

    playbook: str
    hosts: tuple[str, ...]  # in rank order
    checks: tuple[str, ...]


def steps(report: Report) -> list[Step]:
    """What the findings ask for, in the order of PLAYBOOKS; a finding of severity `info` asks for nothing."""
    found = [
        finding
        for finding in report.findings
        if finding.playbook is not None and finding.severity is not Severity.INFO
    ]
    planned = []
    for playbook in PLAYBOOKS:
        mine = [finding for finding in found if finding.playbook == playbook.name]
        hosts = {name for finding in mine for name in finding.hosts}
        if mine:
            order = tuple(host.name for host in report.fleet.hosts if host.name in hosts)
            planned.append(Step(playbook.name, order, tuple(dict.fromkeys(each.check for each in mine))))
    return planned


def check_given(chosen: Sequence[Playbook], variables: Mapping[str, Any], hosts: Sequence[Host]) -> None:
    """Raises UsageError, before a host is asked, if a playbook lacks what only the user can name.

    Args:
        variables: of the inventory and of the command line.
    """
    names = [playbook.name for playbook in chosen]
    if "container" in names and not variables.get("image"):
        raise UsageError(
            "mnt setup container: no image is named",
            fix="add -e image=/srv/images/train.sif, a file of this machine or on shared storage; "
            "or set it for good in the inventory: setup: {image: ..}",
        )
    nowhere = [host for host in hosts if not _IN_AN_ENVIRONMENT.search(host.python[0])]
    if "environment" in names and nowhere and not variables.get("environment_path"):
        pythons = ", ".join(dict.fromkeys(host.python[0] for host in nowhere))
        raise UsageError(
            f"mnt setup environment: no place for the environment: python of "
            f"{brief([host.name for host in nowhere])} is {pythons}",
            fix="set python in the inventory to PLACE/bin/python, or add -e environment_path=PLACE",
        )


_IN_AN_ENVIRONMENT = re.compile(r"[^/]/bin/python[0-9.]*\Z")  # as environment.yml finds the place
_UNREACHABLE = "check the login: mnt preflight -n {host}; mnt run --worker ssh -n {host} true"

# What Ansible and the modules say (ansible-core 2.19, sudo 1.9, apt 2.6), and the way out.
_ADVICE = (
    ("missing sudo password|a password is required|password is required", "add -K"),
    ("incorrect (sudo )?password|sorry, try again", "type the password of {user} for sudo again"),
    ("not in the sudoers|not allowed to (execute|run)|sudo:? .*not found", "let {user} use sudo on {host}"),
    (
        "could not get lock|unable to (acquire|lock)|dpkg.*lock|cache lock",
        "wait until apt on {host} has ended, and run this again",
    ),
    (
        "no space left|not enough free space|disk quota",
        "free space on {host}, and run this again: it goes on where it stopped",
    ),
    (
        r"python[0-9.]*:? (command )?not found|no python interpreters? found",
        "install Python on {host}: mnt setup system",
    ),
)
# What apt, dnf, pip and uv say if they do not reach their mirror. Others say some of it of other servers.
_NO_MIRROR = (
    "temporary failure (in name resolution|resolving)|could not resolve|failed to fetch|could not connect"
    "|unable to fetch|network is unreachable|no route to host|establish a new connection"
    "|connection (timed out|refused)"
)
# By playbook, the option that brings what it would look for there.
_BRINGS = {"system": "--debs DIR", "rdma": "--debs DIR", "environment": "--wheelhouse DIR"}


def advice(problem: str, playbook: str, *, host: str, user: str, unreachable: bool = False) -> str | None:
    """The way out of a failed task, or of a login that failed; None: the message must do."""
    if unreachable:
        return _UNREACHABLE.format(host=shlex.quote(host))
    for pattern, way in _ADVICE:
        if re.search(pattern, problem, re.IGNORECASE):
            return way.format(host=host, user=user)
    if playbook in _BRINGS and re.search(_NO_MIRROR, problem, re.IGNORECASE):
        return f"give {host} a way to its package mirror, or bring the packages: {_BRINGS[playbook]}"
    return None
