"""The hostfile, judged by DeepSpeed's own parser."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from mnt.errors import UsageError
from mnt.inventory.exchange import hostfile
from mnt.inventory.loader import load
from mnt.inventory.model import Host

TRAIN_PYTHON = os.environ.get("MNT_TRAIN_PYTHON", "/var/cache/mnt/train-venv/bin/python")
HOSTS = (Host("node2", "10.0.0.2", gpus=8), Host("gpu-1.rack_7.lan", "x", gpus=4), Host("10.0.0.1", "y"))

FETCH = """
import json, sys
from deepspeed.launcher.runner import fetch_hostfile
print("pool", json.dumps(list(fetch_hostfile(sys.argv[1]).items())))
"""


def test_a_line_a_host_in_rank_order() -> None:
    assert hostfile.render(HOSTS) == "node2 slots=8\ngpu-1.rack_7.lan slots=4\n10.0.0.1 slots=1\n"


def test_slots_may_be_told() -> None:
    assert hostfile.render(HOSTS[:2], slots=2) == "node2 slots=2\ngpu-1.rack_7.lan slots=2\n"


@pytest.mark.skipif(not os.path.exists(TRAIN_PYTHON), reason=f"no {TRAIN_PYTHON}: run scripts/train-venv.sh")
def test_deepspeed_reads_the_same_hosts_and_slots(tmp_path: Path) -> None:
    inventory = tmp_path / "cluster.yaml"
    inventory.write_text("hosts: {'node[09-11]': {gpus: 8}, gpu-1.rack_7.lan: {gpus: 4}, 10.0.0.1: }")
    hosts = load(inventory).hosts
    file = tmp_path / "hostfile"
    hostfile.write(str(file), hostfile.render(hosts))
    ran = subprocess.run(
        [TRAIN_PYTHON, "-c", FETCH, file],
        capture_output=True,
        text=True,
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    (pool,) = (line for line in ran.stdout.splitlines() if line.startswith("pool "))
    assert json.loads(pool.removeprefix("pool ")) == [[host.name, host.slots] for host in hosts]


def test_writing_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "hostfile"
    file.write_text("a much longer text that was here before\n")
    link = tmp_path / "link"
    link.symlink_to(file)
    hostfile.write(str(link), "node1 slots=1\n")
    assert file.read_text() == "node1 slots=1\n"
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [file, link]


def test_a_new_file_has_the_mode_that_umask_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        hostfile.write(str(tmp_path / "hostfile"), "")
    finally:
        os.umask(before)
    assert (tmp_path / "hostfile").stat().st_mode & 0o777 == 0o640


def test_what_is_no_plain_file_is_written_to(tmp_path: Path) -> None:
    hostfile.write("/dev/null", "node1 slots=1\n")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(("file", "reason"), [("gone/hostfile", "No such file"), (".", "Is a directory")])
def test_a_file_that_cannot_be_written(tmp_path: Path, file: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        hostfile.write(str(tmp_path / file), "node1 slots=1\n")
    assert not list(tmp_path.iterdir())
