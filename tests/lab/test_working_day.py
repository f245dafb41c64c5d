"""What a person sees of a job: that it has started, how it goes and ends, and no more than can be read."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from launches import start_attached
from waiting import at_most, read_until, rest_of, wait_for

from mnt.lab.lab import Lab

pytestmark = pytest.mark.usefixtures("no_job_left")

Mnt = Callable[..., subprocess.CompletedProcess[str]]

RANKS = """
import os, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
print("rank", dist.get_rank(), "is there", flush=True)
time.sleep(float(sys.argv[1]))
if dist.get_rank() == 1:
    sys.exit(int(sys.argv[2]))
"""
FLOOD = """
import sys, time
line = "x" * 120 + "\\n"
while True:
    sys.stdout.write(line * 20_000)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    (root / "ranks.py").write_text(RANKS)
    (root / "flood.py").write_text(FLOOD)
    (root / "lines.py").write_text("for n in range(30): print('line', n)\n")
    return root


def without_torch(lab: Lab, host: str, path: Path) -> str:
    """The lab's inventory, with an interpreter on one host that has no torch."""
    document = yaml.safe_load(lab.inventory_path.read_text())
    document["hosts"][host]["python"] = "/usr/bin/python3"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return str(path)


def test_detach_returns_when_the_ranks_of_every_node_are_started(pushed: Mnt) -> None:
    done = pushed("launch", "-n", "node[1-3]", "--detach", "ranks.py", "60", "0")
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    for rank in range(3):  # the file of its output is there
        assert pushed("logs", job, "--rank", str(rank)).returncode == 0
    (found,) = json.loads(pushed("status", "--json", job).stdout)["jobs"]
    assert (found["state"], found["command"]) == ("running", "ranks.py 60 0")
    assert 0 < found["seconds"] < 60
    assert pushed("stop", job).returncode == 0


@pytest.mark.parametrize("how", [["--detach"], []])
def test_a_node_whose_ranks_never_start(pushed: Mnt, lab: Lab, tmp_path: Path, how: list[str]) -> None:
    """Its torchrun cannot begin; the others wait for it at the rendezvous, and have no ranks either."""
    inventory = without_torch(lab, "node2", tmp_path / "inventory.yaml")
    with at_most(60):
        done = pushed(
            "launch", "-i", inventory, "-n", "node[1-3]", "--no-preflight", *how, "ranks.py", "60", "0"
        )
    assert done.returncode == 125, done.stderr
    assert "node2: " in done.stderr
    assert "No module named 'torch'" in done.stderr.splitlines()[-2 if how else -1]
    writers = {line.partition(" | ")[0] for line in done.stdout.splitlines()}
    assert writers == (set() if how else {"node2"})
    (newest, *_) = json.loads(pushed("status", "--json").stdout)["jobs"]
    assert newest["state"] == "failed"


def test_ranks_that_do_not_start_in_time(pushed: Mnt, lab: Lab, tmp_path: Path) -> None:
    """A torchrun that hangs on one node: that of the other waits for it."""
    document = yaml.safe_load(lab.inventory_path.read_text())
    python = document["defaults"]["python"]
    script = f'case "$*" in *torch.distributed.ru[n]*) exec sleep 300;; esac; exec {python} "$@"'
    document["hosts"]["node2"]["python"] = ["/bin/sh", "-c", script, "python"]
    path = tmp_path / "inventory.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    words = ("-i", str(path), "-n", "node[1-2]", "--no-preflight", "--start-timeout", "8")
    with at_most(60):
        done = pushed("launch", *words, "--detach", "ranks.py", "60", "0")
    assert done.returncode == 125, done.stderr
    assert "mnt: node[1-2]: no ranks after 8 s" in done.stderr


@pytest.mark.matrix
def test_following_ends_as_the_job_does(pushed: Mnt) -> None:
    started = pushed("launch", "-n", "node[1-2]", "--detach", "ranks.py", "3", "7")
    job = started.stdout.strip()
    with at_most(60):
        followed = pushed("logs", "-f", job)
    assert followed.returncode == 7
    assert followed.stderr.splitlines()[-1] == f"job {job} failed: node2: rank 1 exited with code 7"
    shown = pushed("status").stdout.splitlines()
    assert shown[0].split() == ["JOB", "STATE", "VIA", "NODES", "STARTED", "TOOK", "SCRIPT", "CULPRIT"]
    assert "ranks.py 3 7" in shown[1]
    assert pushed("logs", job).returncode == 0  # only -f waits for the end, and takes its code
    one_line = pushed("status", "--limit", "1")
    assert len(one_line.stdout.splitlines()) == 2
    assert "older job" in one_line.stderr


def test_the_last_lines(pushed: Mnt) -> None:
    assert pushed("launch", "-n", "node[1-2]", "lines.py").returncode == 0
    tail = pushed("logs", "--tail", "2")
    assert sorted(tail.stdout.splitlines()) == [
        "node1 | [rank0] line 28",
        "node1 | [rank0] line 29",
        "node2 | [rank1] line 28",
        "node2 | [rank1] line 29",
    ]
    assert pushed("logs", "--tail", "0").stdout == ""
    assert pushed("logs", "--rank", "0", "--tail", "1").stdout.endswith("line 29\n")


@pytest.mark.matrix
def test_a_flood_is_not_drained_after_a_stop(pushed: Mnt, lab: Lab) -> None:
    """Its output is written faster than it can be shown."""
    launch = start_attached(lab, "-n", "node[1-2]", "--grace", "1", "flood.py")
    read_until(launch, "xxxx")
    job = json.loads(pushed("status", "--json").stdout)["jobs"][0]["job"]

    def behind() -> bool:
        size = sum(
            int(
                lab.host(host).exec(["sh", "-c", f"stat -c %s ~mnt/.mnt/jobs/{job}/{host}/output.log"]).stdout
            )
            for host in ("node1", "node2")
        )
        return size > 100_000_000

    wait_for(behind)  # nobody reads the view meanwhile: its pipe is full
    assert pushed("stop", job).returncode == 0
    began = time.monotonic()
    with at_most(60):
        said = rest_of(launch)
    assert time.monotonic() - began < 30
    assert launch.returncode == 143
    for host in ("node1", "node2"):
        skipped = re.search(rf"{host}: ([0-9.,]+) MB of output skipped, because the job was stopped", said)
        assert skipped is not None
        assert float(skipped[1].replace(",", "")) > 10
