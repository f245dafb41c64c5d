"""Nodes of unequal size, and some of their slots, on real hosts under the real torchrun."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sessions
import yaml
from launches import nothing_is_left

from mnt.lab.lab import Lab, LabRequest, down

RunMnt = Callable[..., subprocess.CompletedProcess[str]]

MEET = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank()])
dist.all_reduce(total)
print("met", dist.get_rank(), os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"], int(total))
dist.barrier()
if sys.argv[1:] == [str(dist.get_rank())]:
    sys.exit("this rank fails")
sys.stdout.flush()
os._exit(0)  # see train/lm/worker.py
"""

WAIT = """
import time, torch.distributed as dist
dist.init_process_group("gloo")
time.sleep(300)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Three hosts with 4, 2 and 1 slots."""
    name = sessions.new_name()
    try:
        lab = Lab.up(LabRequest(name=name, count=3))
        written = yaml.safe_load(lab.inventory_path.read_text())
        for host, slots in (("node1", 4), ("node2", 2)):
            written["hosts"][host] = {**(written["hosts"][host] or {}), "slots": slots}
        lab.inventory_path.write_text(yaml.safe_dump(written, sort_keys=False))
        yield lab
    finally:
        down(name)


@pytest.fixture(scope="module")
def pushed(
    lab: Lab, run_mnt: RunMnt, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., subprocess.CompletedProcess[str]]:
    tree = tmp_path_factory.mktemp("tree")
    Path(tree, "meet.py").write_text(MEET)
    Path(tree, "wait.py").write_text(WAIT)
    done = run_mnt("push", str(tree), lab=lab)
    assert done.returncode == 0, done.stderr

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return run_mnt(*args, lab=lab)

    return run


def met(stdout: str) -> list[tuple[str, int, int, int, int]]:
    """(host, rank, local rank, local world size, sum of all ranks) of each rank."""
    found = re.findall(r"^(\S+) +\| .*met (\d+) (\d+) (\d+) (\d+)$", stdout, re.MULTILINE)
    return sorted(((host, *map(int, rest)) for host, *rest in found), key=lambda each: each[1])  # type: ignore[misc]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-n", "node3,node1:0,2,node2"], [("node3", 1), ("node1", 2), ("node2", 2)]),
        pytest.param(
            ["--include", "node2:1@node1:0,1,3"], [("node1", 3), ("node2", 1)], marks=pytest.mark.matrix
        ),
    ],
)
def test_ranks_of_nodes_of_unequal_size(
    pushed: RunMnt, lab: Lab, words: list[str], expected: list[tuple[str, int]]
) -> None:
    done = pushed("launch", *words, "meet.py")
    assert done.returncode == 0, done.stderr
    places = [(host, local, count) for host, count in expected for local in range(count)]
    total = sum(range(len(places)))
    assert met(done.stdout) == [
        (host, rank, local, count, total) for rank, (host, local, count) in enumerate(places)
    ]
    job = json.loads(pushed("status", "--json", "--limit", "1").stdout)["jobs"][0]
    assert [node["host"] for node in job["nodes"]] == [host for host, _ in expected]
    assert {node["host"]: node["gpus"] for node in job["nodes"]}["node1"] in ("0,2", "0,1,3")
    for rank, (host, _, _) in enumerate(places):
        assert f"met {rank} " in pushed("logs", job["job"], "--rank", str(rank)).stdout, host
    listed = pushed("status").stdout
    assert "node1:0" in listed
    nothing_is_left(lab)


@pytest.mark.matrix
def test_the_culprit_among_nodes_of_unequal_size(pushed: RunMnt, lab: Lab) -> None:
    done = pushed("launch", "-n", "node2:1,node1:0-2", "meet.py", "3")
    assert done.returncode == 1
    assert "node1, rank 3" in done.stderr or "rank 3" in done.stderr, done.stderr
    job = json.loads(pushed("status", "--json", "--limit", "1").stdout)["jobs"][0]
    assert (job["culprit"]["host"], job["culprit"]["rank"]) == ("node1", 3)
    nothing_is_left(lab)


def test_a_slot_beyond_the_inventory_is_refused_by_name(pushed: RunMnt) -> None:
    done = pushed("launch", "-n", "node1,node2:0,2", "meet.py")
    assert done.returncode == 2
    assert "node2 has no slot 2: by the inventory it has 2 slots, from 0 to 1" in done.stderr
    counted = pushed("launch", "--nproc", "gpu", "--dry-run", "meet.py")
    assert counted.returncode == 1
    assert "--nproc gpu: there is no GPU that nvidia-smi lists" in counted.stderr


def test_a_second_job_on_the_same_hosts_gets_a_port_of_its_own(pushed: RunMnt, lab: Lab) -> None:
    first = pushed("launch", "--detach", "-n", "node[1-2]:0", "wait.py")
    assert first.returncode == 0, first.stderr
    job = first.stdout.strip()
    try:
        second = pushed("launch", "-n", "node[1-2]:1", "meet.py")
        assert second.returncode == 0, second.stderr
        assert f"node1: job {job} has the master port 29500: this one gets 29501" in second.stderr
        named = pushed("launch", "--master-port", "29500", "-n", "node[1-2]:1", "meet.py")
        assert named.returncode == 125
        assert f"port 29500 is in use by job {job} (running)" in named.stderr
        unchecked = pushed(
            "launch", "--no-preflight", "--master-port", "29500", "-n", "node[1-2]:1", "meet.py"
        )
        assert unchecked.returncode == 125
        assert f", of job {job}: " in unchecked.stderr
        elsewhere = pushed("launch", "-n", "node3", "meet.py")  # another master, so the port is free there
        assert elsewhere.returncode == 0
        assert "gets" not in elsewhere.stderr
        listed = pushed("status").stdout
        assert "node1:0,node2:0" in listed
    finally:
        stopped = pushed("stop", job)
    assert stopped.returncode == 0, stopped.stderr
    nothing_is_left(lab)
