"""The store of a running job, as a stranger on the management network meets it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest
import yaml
from waiting import PATIENCE, wait_for

from mnt.lab.lab import Lab, LabHost

Mnt = Callable[..., subprocess.CompletedProcess[str]]

PORT = 29500
# Each rank prints what the store says, sums ones over gloo, and goes on until the job is stopped.
JOB = """
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total), flush=True)
while True:
    time.sleep(0.2)
    dist.all_reduce(torch.ones(1))
"""
# What anyone with torch can do to a store that answers.
STRANGER = """
import datetime, sys
from torch.distributed import TCPStore

try:
    store = TCPStore(sys.argv[1], int(sys.argv[2]), timeout=datetime.timedelta(seconds=4))
except Exception as error:
    sys.exit(f"refused: {error}")
store.set("left by", "a stranger")
print(store.num_keys(), store.get("left by").decode())
"""


@pytest.fixture(scope="module")
def mnt_with_job(mnt: Mnt, tmp_path_factory: pytest.TempPathFactory) -> Mnt:
    tree = tmp_path_factory.mktemp("tree")
    (tree / "sums.py").write_text(JOB)
    pushed = mnt("push", str(tree))
    assert pushed.returncode == 0, pushed.stderr
    return mnt


@pytest.fixture(scope="module")
def job(mnt_with_job: Mnt) -> Iterator[str]:
    """A job on two hosts whose ranks have met."""
    started = mnt_with_job("launch", "-n", "node[1-2]", "--detach", "--json", "sums.py", timeout=3 * PATIENCE)
    assert started.returncode == 0, started.stderr
    name = json.loads(started.stdout)["job"]
    try:
        wait_for(lambda: "sum 2" in mnt_with_job("logs", name).stdout)
        yield name
    finally:
        mnt_with_job("stop", name)


def strangers_visit(lab: Lab, address: str) -> subprocess.CompletedProcess[str]:
    """This machine has an address in the management network, and none in the training network."""
    words = [training_python(lab), "-c", STRANGER, address, str(PORT)]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)


def training_python(lab: Lab) -> str:
    return str(yaml.safe_load(lab.inventory_path.read_text())["defaults"]["python"])


def listening(host: LabHost) -> dict[str, set[str]]:
    """Port -> the addresses on which something LISTENs on it; without sshd's."""
    found: dict[str, set[str]] = {}
    for line in host.exec(["ss", "-Hltn", "sport != 22"]).stdout.splitlines():
        address, _, port = line.split()[3].rpartition(":")
        found.setdefault(port, set()).add(address)
    return found


def test_a_stranger_on_the_management_network_does_not_reach_the_store(lab: Lab, job: str) -> None:
    visit = strangers_visit(lab, lab.host("node1").spec.management)
    assert (visit.returncode, visit.stdout) == (1, ""), visit
    assert "refused: " in visit.stderr


def test_a_job_listens_on_its_training_nics_only(lab: Lab, job: str) -> None:
    assert str(PORT) in listening(lab.host("node1"))
    for host in map(lab.host, ("node1", "node2")):
        assert set().union(*listening(host).values()) <= {host.spec.training}
