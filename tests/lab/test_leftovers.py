"""`kill -9` of mnt in the middle of any command, `mnt stop --all`, `mnt lab down`: nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import remains
import sessions
from waiting import wait_for

from mnt.lab.lab import Lab, LabRequest, down

Run = Callable[..., subprocess.CompletedProcess[str]]

SLEEPER = """
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"], start_new_session=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    (root / "sleeper.py").write_text(SLEEPER)
    (root / "weights.bin").write_bytes(os.urandom(32 << 20))
    return root


@pytest.fixture(scope="module")
def shaken(lab_support: None, run_mnt: Run, tree: Path) -> Iterator[Lab]:
    """Two hosts for this module; at its end `mnt lab down`, and nothing of them is left."""
    name = sessions.new_name()
    try:
        lab = Lab.up(LabRequest(name=name, count=2))
        done = run_mnt("push", str(tree), lab=lab)
        assert done.returncode == 0, done.stderr
        yield lab
        namespaces, since = remains.network_namespaces(lab), remains.now()
        assert remains.still_in(namespaces, since)
        assert run_mnt("lab", "down", "--name", name).returncode == 0
        assert remains.of_lab(name) == []
        assert remains.still_in(namespaces, since) == []
    finally:
        down(name)


@pytest.mark.parametrize("moment", [pytest.param(0.7, marks=pytest.mark.matrix), 1.6], ids="{} s".format)
@pytest.mark.parametrize(
    "command",
    [
        "preflight",
        "net",
        "push .",
        "launch sleeper.py",
        "launch --detach sleeper.py",
        "status",
        "logs -f",
        "stop --grace 1",
        "run sleep 600",
    ],
)
def test_kill_9_in_the_middle_of(command: str, moment: float, shaken: Lab, run_mnt: Run, tree: Path) -> None:
    before = remains.processes(shaken)

    def left() -> bool:
        """Whether a host has processes that it did not have before."""
        now = remains.processes(shaken)
        return any(Counter(now[host]) - Counter(before[host]) for host in now)

    if command.startswith(("status", "logs", "stop")):
        assert run_mnt("launch", "--detach", "sleeper.py", lab=shaken).returncode == 0
    if command.startswith("push"):
        (tree / "version").write_text(f"{command} {moment}")  # else there is nothing to send
    killed = subprocess.Popen(
        [sys.executable, "-m", "mnt", *command.split()],
        env={**os.environ, "MNT_INVENTORY": str(shaken.inventory_path)},
        cwd=tree,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(moment)
    killed.kill()
    killed.wait()
    done = run_mnt("stop", "--all", "--grace", "1", lab=shaken)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not left(), every=0.2)
