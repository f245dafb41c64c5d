"""GPUs of hosts: `node1:0,1,node2`, and DeepSpeed's `--include` and `--exclude`, judged by its own parser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mnt.errors import UsageError
from mnt.inventory import slots
from mnt.inventory.exchange import hostfile
from mnt.inventory.loader import load
from mnt.inventory.model import Host, Inventory

TRAIN_PYTHON = os.environ.get("MNT_TRAIN_PYTHON", "/var/cache/mnt/train-venv/bin/python")
HOSTS = (
    Host("node1", "a", gpus=8),
    Host("node2", "b", gpus=4),
    Host("cpu1", "c"),
    Host("cpu2", "d", own_slots=4),
)
INVENTORY = Inventory("c", "c.yaml", HOSTS, groups={"gpu": ("node2", "node1")})
ALL = None

Found = list[tuple[str, "tuple[int, ...] | None"]]


def chosen(**lists: str | None) -> Found:
    given = {"nodes": None, "exclude": None, **lists}
    return [(host.name, host.chosen) for host in slots.select(INVENTORY, **given)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("node1:0,1", [("node1", (0, 1))]),
        ("node1:0,1,node2", [("node1", (0, 1)), ("node2", ALL)]),
        ("node2,node1:3,1", [("node2", ALL), ("node1", (3, 1))]),  # local rank 0 has GPU 3
        ("node1:0-2,7,node2:2-3", [("node1", (0, 1, 2, 7)), ("node2", (2, 3))]),
        ("node[1-2]:0-3", [("node1", (0, 1, 2, 3)), ("node2", (0, 1, 2, 3))]),
        ("@gpu:0,1,cpu1", [("node2", (0, 1)), ("node1", (0, 1)), ("cpu1", ALL)]),
        (" node1:0 , 1 ,cpu1", [("node1", (0, 1)), ("cpu1", ALL)]),
        ("cpu1:0,cpu2:0,3", [("cpu1", (0,)), ("cpu2", (0, 3))]),
        ("node1,node1,cpu1", [("node1", ALL), ("cpu1", ALL)]),  # as without GPUs
    ],
)
def test_a_hostlist_with_gpus(nodes: str, expected: Found) -> None:
    assert chosen(nodes=nodes) == expected


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ({"include": "node1:0,2@node2"}, [("node1", (0, 2)), ("node2", ALL)]),
        ({"include": "node2@node1:0,2"}, [("node1", (0, 2)), ("node2", ALL)]),  # the order of the file
        ({"include": "@gpu@cpu1"}, [("node1", ALL), ("node2", ALL), ("cpu1", ALL)]),
        ({"exclude": "node1:1-7@node2:0@cpu1,cpu2"}, [("node1", (0,)), ("node2", (1, 2, 3))]),
        ({"exclude": "node1@node2@cpu1"}, [("cpu2", ALL)]),
        ({"nodes": "node1:0-3,node2", "exclude": "node1:1,2"}, [("node1", (0, 3)), ("node2", ALL)]),
        ({"include": "node1:0-3", "exclude": "node1:9"}, None),
    ],
)
def test_deepspeeds_forms(lists: dict[str, str], expected: Found | None) -> None:
    if expected is None:
        with pytest.raises(UsageError, match="node1 has no GPU 9"):
            chosen(**lists)
    else:
        assert chosen(**lists) == expected


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"nodes": "node1:8"}, "node1 has no GPU 8: by the inventory it has 8 GPUs, from 0 to 7"),
        ({"nodes": "node[1-2]:4"}, "node2 has no GPU 4"),
        ({"nodes": "cpu1:1"}, "cpu1 has no slot 1: by the inventory it has 1 slot, 0"),
        ({"nodes": "node1:"}, "no GPU is named after node1:"),
        ({"nodes": "node1:,node2"}, "no GPU is named after node1:"),
        ({"nodes": "node1:0,0"}, "node1 has a GPU twice"),
        ({"nodes": "node1:0-2,1"}, "node1 has a GPU twice"),
        ({"nodes": "node1:0,node1:1"}, "node1 is named twice in 'node1:0,node1:1'"),
        ({"nodes": "node1,node1:1"}, "node1 is named twice"),
        ({"nodes": "node1:2-1"}, "'2-1' names no GPU"),
        ({"nodes": "node1:x"}, "'x' names no GPU"),
        ({"nodes": "node1:-1"}, "'-1' names no GPU"),
        ({"nodes": ":0"}, "the hostlist is empty"),
        ({"nodes": "node9:0"}, "no host named node9"),
        ({"nodes": "node1:0,node9"}, "no host named node9"),
        ({"exclude": "cpu1:0"}, "cpu1: no GPU is left"),
        ({"nodes": "node2:1", "exclude": "node2:1"}, "node2: no GPU is left"),
        ({"nodes": "node1:1", "exclude": "node1"}, "no host is left"),
        ({"include": "ubuntu@node1:1"}, "no host named ubuntu"),
    ],
)
def test_what_is_refused(lists: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        chosen(**lists)
    assert message in error.value.message
    assert error.value.fix


FILTER = """
import json, sys
from deepspeed.launcher.runner import fetch_hostfile, parse_inclusion_exclusion
pool = fetch_hostfile(sys.argv[1])
print("pool", json.dumps(list(parse_inclusion_exclusion(pool, *sys.argv[2:4]).items())))
"""


@pytest.mark.skipif(not os.path.exists(TRAIN_PYTHON), reason=f"no {TRAIN_PYTHON}: run scripts/train-venv.sh")
@pytest.mark.parametrize(
    ("include", "exclude"), [("node2@node1:0,2@cpu2:3", ""), ("", "node1:1@node2:0@cpu1@cpu2:0,1")]
)
def test_deepspeed_selects_the_same(tmp_path: Path, include: str, exclude: str) -> None:
    file = tmp_path / "hostfile"
    file.write_text(hostfile.render(HOSTS))
    done = subprocess.run(
        [TRAIN_PYTHON, "-c", FILTER, file, include, exclude], capture_output=True, text=True, timeout=120
    )
    pool = next(line for line in done.stdout.splitlines() if line.startswith("pool "))
    hosts = slots.select(INVENTORY, nodes=None, exclude=exclude or None, include=include or None)
    ours = [[host.name, list(host.all_slots if host.chosen is None else host.chosen)] for host in hosts]
    assert json.loads(pool.removeprefix("pool ")) == ours


def mnt(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "mnt", *words], capture_output=True, text=True, timeout=60)


def test_the_hostfile_has_the_slots_that_include_counts(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("hosts: {node1: {gpus: 8}, node2: {gpus: 4}, cpu: {slots: 2}}")
    assert [host.slots for host in load(file).hosts] == [8, 4, 2]
    done = mnt(["hostfile", "-i", str(file), "-n", "node1:2,3,node2"])
    assert done.stdout == "node1 slots=8\nnode2 slots=4\n"
    assert "deepspeed --include node1:2,3@node2" in done.stderr
    plain = mnt(["hostfile", "-i", str(file), "-x", "node2"])
    assert (plain.stdout, plain.stderr) == ("node1 slots=8\ncpu slots=2\n", "")


def test_other_commands_take_no_gpus(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("hosts: {node1: {gpus: 8}}")
    done = mnt(["run", "-i", str(file), "-n", "node1:0", "true"])
    assert done.returncode == 2
    assert "GPUs are selected for mnt launch only" in done.stderr
