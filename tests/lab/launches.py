"""Launches on lab hosts, for tests: started as a person does, and what they must not leave."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from waiting import wait_for

from mnt.lab.lab import Lab

SLEEP = """
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "300"], start_new_session=True)
print("sleeping", os.environ["RANK"], flush=True)
time.sleep(300)
"""


def nothing_is_left(lab: Lab) -> None:
    """No process of any job on any host; a supervisor ends soon after it has told how its job did."""
    for host in lab.hosts:
        if host.alive:
            wait_for(lambda name=host.name: processes_of_jobs(lab, name) == [])  # type: ignore[misc]


def processes_of_jobs(lab: Lab, host: str) -> list[str]:
    """The processes on a host whose environment carries the mark of a job, or that are a supervisor."""
    listed = lab.host(host).exec(
        ["sh", "-c", "grep -lsz '^MNT_JOB=' /proc/[0-9]*/environ; pgrep -fa '[s]upervisor.py' || true"]
    )
    return [line for line in listed.stdout.splitlines() if line]


def start_attached(lab: Lab, *args: str, **options: Any) -> subprocess.Popen[str]:
    return start_mnt(lab, "launch", *args, **options)


def start_mnt(lab: Lab, *args: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mnt", *args],
        env={**os.environ, "MNT_INVENTORY": str(lab.inventory_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
