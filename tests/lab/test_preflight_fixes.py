"""What a check advises leads out: its fix is taken literally on a lab host, and preflight is run again."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import faults
import pytest
import sessions

from mnt.lab.lab import Lab, LabHost, LabRequest, down

RunMnt = Callable[..., subprocess.CompletedProcess[str]]
Findings = list[dict[str, Any]]
PYTHON = "/usr/bin/python3"

# What they leave out: who reaches whom takes the longest, and has tests of its own.
SKIPPED = "nic-reach,route,mtu,ssh-mesh,storage-visible"


@pytest.fixture(scope="module")
def hosts(lab_support: None) -> Iterator[Lab]:
    name = sessions.new_name()
    try:
        lab = Lab.up(LabRequest(name=name, count=2), python=PYTHON)
        for host in lab.hosts:
            faults.install(host, "torch", "2.13.0+cpu")
        yield lab
    finally:
        down(name)


@pytest.fixture
def preflight(hosts: Lab, run_mnt: RunMnt) -> Callable[[], Findings]:
    def run() -> Findings:
        done = run_mnt("preflight", "--json", "--skip", SKIPPED, lab=hosts)
        assert done.returncode in (0, 1), done.stderr
        findings: Findings = json.loads(done.stdout)["findings"]
        return findings

    return run


_EDIT = re.compile(r"in /etc/hosts, remove (\S+) from all lines, and add the line: (.*)")


def follow(host: LabHost, fix: str) -> None:
    """Do what a fix says, as root of the host: its commands, and its edit of /etc/hosts."""
    for step in re.split(r"; (?:then:? )?", fix):
        if edit := _EDIT.fullmatch(step):
            edit_hosts(host, edit[1], edit[2])
        else:
            done = host.exec(["sh", "-ec", step.partition(": ")[2] or step])
            assert done.returncode == 0, (step, done.stderr)


def edit_hosts(host: LabHost, name: str, line: str) -> None:
    lines = host.exec(["cat", "/etc/hosts"]).stdout.splitlines()
    others = [" ".join(word for word in old.split() if word != name) for old in lines]
    faults.write_file(host, "/etc/hosts", "\n".join([*others, line, ""]))


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1 localhost\n127.0.1.1 node2\n{address} node2\n",
        "127.0.0.1 localhost\n{address} node2\n127.0.1.1 node2.example node2\n",  # sorted first
        "127.0.0.1 localhost node2\n",
        "127.0.0.1 localhost\n{stranger} node2\n",
    ],
)
def test_a_name_that_leads_to_the_loopback_address(
    hosts: Lab, preflight: Callable[[], Findings], text: str
) -> None:
    """Also if the training address is among the others: gloo takes the first."""
    host = hosts.host("node2")
    text = text.format(address=host.spec.training, stranger=hosts.host("node1").spec.training)
    with faults.file_holds(host, "/etc/hosts", text):
        (finding,) = preflight()
        assert (finding["check"], finding["hosts"]) == ("hostname-loopback", ["node2"])
        follow(host, finding["fix"])
        assert preflight() == []


def test_a_host_called_localhost(hosts: Lab, preflight: Callable[[], Findings]) -> None:
    """It gets a name of its own: `localhost` must lead to 127.0.0.1."""
    host = hosts.host("node2")
    with faults.file_holds(host, "/etc/hosts", "127.0.0.1 localhost\n"):
        assert host.exec(["hostname", "localhost"]).returncode == 0
        try:
            (finding,) = preflight()
            assert (finding["check"], finding["hosts"]) == ("hostname-loopback", ["node2"])
            follow(host, finding["fix"])
            assert preflight() == []
            assert host.exec(["getent", "hosts", "localhost"]).stdout.startswith(("127.0.0.1", "::1"))
        finally:
            host.exec(["hostname", "node2"])
