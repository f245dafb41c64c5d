"""Hosts with a torch to be looked at, and the checks that look at single hosts; for tests of preflight."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import faults
import sessions

from mnt.lab.lab import Lab, LabRequest, down

RunMnt = Callable[..., subprocess.CompletedProcess[str]]
Findings = list[dict[str, Any]]
PYTHON = "/usr/bin/python3"

# What they leave out: who reaches whom takes the longest, and has tests of its own.
SKIPPED = "nic-reach,route,mtu,ssh-mesh,storage-visible"


@contextmanager
def torch_hosts(count: int) -> Iterator[Lab]:
    """A lab whose hosts have the metadata of torch, and nothing of torch itself."""
    name = sessions.new_name()
    try:
        lab = Lab.up(LabRequest(name=name, count=count), python=PYTHON)
        for host in lab.hosts:
            faults.install(host, "torch", "2.13.0+cpu")
        yield lab
    finally:
        down(name)


def findings_on(run_mnt: RunMnt, lab: Lab, *args: str) -> Findings:
    """What preflight finds on the hosts of a lab."""
    done = run_mnt("preflight", "--json", "--skip", SKIPPED, *args, lab=lab)
    assert done.returncode in (0, 1), done.stderr
    findings: Findings = json.loads(done.stdout)["findings"]
    return findings
