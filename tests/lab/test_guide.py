"""docs/guide.md, command by command: on hosts that have all of it, and on hosts that have nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml
from mirror import serving
from nfs import NfsLab
from test_quickstart import PASSWORD, TRAIN, make_strange, train_wheels
from walkthrough import ROOT, Reader, addresses, commands

from mnt.lab.lab import Lab

pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")

pytestmark = [
    pytest.mark.train,
    pytest.mark.skipif(not TRAIN.exists(), reason="no torch for the hosts: bash scripts/train-venv.sh"),
]
MEMORY = "1536M"  # of a guest: torch, and what pip unpacks
SLOW = 1800.0  # seconds that a command may say nothing: pip unpacks torch over NFS, in a kernel in user mode
PAGE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
CONSENT = ("Write inventories/default.yaml", "y")
ANSWERS = {
    "mnt init -n 'node[1-2]'": [CONSENT],
    "mnt ssh-setup": [("Password of mnt", PASSWORD)],
    "mnt init": [CONSENT],
    "mnt setup -K nfs": [("Password for sudo", PASSWORD)],
}


def walk(reader: Reader, fails: Mapping[str, str], edits: Mapping[str, Callable[[], None]]) -> None:
    """Type all commands of the guide.

    Args:
        fails: by command, what those say that fail; all others succeed.
        edits: by command, what the reader does to the inventory before it.
    """
    lines = commands("guide.md")
    assert {*ANSWERS, *fails, *edits} <= {*lines}
    for line in lines:
        edits.get(line, lambda: None)()
        said = reader.types(line, ANSWERS.get(line, ()), patience=SLOW)
        assert said.code == (1 if line in fails else 0), f"$ {line}\n{said.text}"
        assert fails.get(line, "") in said.text, f"$ {line}\n{said.text}"


def trained(reader: Reader) -> Path:
    """The metrics of the one job, on the head. Both nodes have trained, and their logs are here too."""
    (job,) = (place for place in (reader.project / "fetched").iterdir() if place.is_dir())
    assert sorted(host.name for host in job.iterdir()) == ["node1", "node2"]
    for rank, host in enumerate(["node1", "node2"]):
        output = (job / host / "logs" / "output.log").read_text()
        assert f"{host}: rank {rank} of 2, cpu, gloo" in output
    (metrics,) = job.glob("node1/**/outputs/guide/metrics.jsonl")
    assert len(metrics.read_text().splitlines()) == 20
    return metrics


@pytest.mark.matrix
def test_hosts_that_have_it_all(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    """Their storage is no NFS, and their environment not of `mnt setup`: both stay as they are."""
    reader = Reader(tmp_path, addresses(make_strange(make_lab, bare=False)))
    fails = {
        "mnt init -n 'node[1-2]'": "0 of 2 hosts answered",
        "mnt setup -K nfs": "the inventory has no storage of type nfs or nfs4",
        "mnt setup environment": f"{TRAIN.parents[1]} exists, and was not made by this playbook",
    }
    walk(reader, fails, {})
    trained(reader)


@pytest.mark.matrix
def test_hosts_that_have_nothing(nfs_support: None, tmp_path: Path) -> None:
    """They end with a job from real NFS: the kernel's server on node1, mounted by both."""
    with (
        NfsLab(2, bare=True, memory=MEMORY) as lab,
        serving(lab, wheels=train_wheels(tmp_path / "wheels")) as mirror,
    ):
        for node in lab.nodes.values():
            node.guest.run(f"rm /etc/ssh/authorized_keys; echo 'mnt:{PASSWORD}' | chpasswd -c SHA256")
        reader = Reader(tmp_path, {node.name: node.address for node in lab.nodes.values()})
        server = lab.nodes["node1"].address

        def storage() -> None:
            _write(reader, "storage:", {"10.0.0.1": server})
            _write(reader, "python:", {})

        def setup() -> None:
            _write(reader, "setup:", {"https://mirror.example.com/simple/": mirror.pip})

        fails = {
            "mnt init -n 'node[1-2]'": "0 of 2 hosts answered",
            "mnt preflight --only os-release,kernel,python-version,torch-version,driver-version": (
                "mnt setup environment"
            ),
        }
        walk(reader, fails, {"mnt setup -K nfs": storage, "mnt setup environment": setup})
        for node in lab.nodes.values():
            mounted = node.guest.run("findmnt -n -o SOURCE,FSTYPE /shared").split()
            assert mounted == [f"{server}:/srv/shared", "nfs4"]
            assert "/train.builds/" in node.guest.run("readlink -f /shared/train")
        there = lab.nodes["node2"].guest.run("cat /shared/mnt/shared/outputs/guide/metrics.jsonl")
        assert there == trained(reader).read_text()  # node1 has written it


def _write(reader: Reader, beginning: str, own: Mapping[str, str]) -> None:
    """Write what the page has as an example into the inventory, with the reader's own words in it."""
    (example,) = re.findall(rf"(?m)^    {beginning}.*\n(?:^    .*\n)*", PAGE)
    for theirs, ours in own.items():
        assert theirs in example
        example = example.replace(theirs, ours)
    inventory = yaml.safe_load(reader.inventory.read_text())
    added = yaml.safe_load(example)
    (inventory["defaults"] if beginning == "python:" else inventory).update(added)
    reader.inventory.write_text(yaml.safe_dump(inventory, sort_keys=False))
