"""The kernel's table of neighbours: this machine's, and what is made of one that is too small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fleets import findings, make_fleet, only_finding, texts

from mnt.facts.host import HostFacts, Machine
from mnt.facts.reach import Reach, Reached, TrainingNic
from mnt.facts.system import Neighbours
from mnt.preflight.neighbours import NO_BUFFERS
from mnt.remote.probe import neighbours

ROOT = Path(__file__).parents[2]
THRESHOLD = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")


@pytest.mark.skipif(not THRESHOLD.exists(), reason="not the first network namespace")
def test_this_machines_table() -> None:
    answer = {"hostname": "here", "neighbours": neighbours.neighbours()}
    found = HostFacts.parse("here", json.loads(json.dumps(answer))).neighbours
    assert found is not None
    assert found.limit == int(THRESHOLD.read_text())
    assert 0 <= found.entries <= found.limit


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a network namespace")
def test_a_namespace_shows_its_kernels_table() -> None:
    """There, /proc/sys has no thresholds."""
    code = "import json; from mnt.remote.probe.neighbours import neighbours; print(json.dumps(neighbours()))"
    within = ["unshare", "--net", sys.executable, "-c", code]
    done = subprocess.run(
        within, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True
    )
    here = neighbours.neighbours()
    assert here is not None
    assert json.loads(done.stdout)["limit"] == here["limit"]


def fleet_of(
    outcomes: dict[tuple[int, int], str], table: Neighbours | None, *, boot: str | None = None
) -> Any:
    """Four hosts in one subnet; `outcomes` of the connections that fail. `boot`: of one kernel for all."""
    nics = {f"node{n}": TrainingNic(f"eth{n}", f"10.0.0.{n}", "10.0.0.0/24", 1500) for n in range(1, 5)}

    def reached(a: int, b: int) -> Reached:
        outcome = outcomes.get((a, b), "ok")
        return Reached(route=f"eth{a}", mtu=1500, full=True, master=outcome, ports={4: outcome})

    pairs = {f"node{a}": {f"node{b}": reached(a, b) for b in range(1, 5) if a != b} for a in range(1, 5)}
    own = {f"node{n}": {"neighbours": table, "machine": Machine(boot or f"boot {n}", n)} for n in range(1, 5)}
    return replace(make_fleet(own), reach=Reach(nics, pairs))


SMALL, ROOMY = Neighbours(limit=4, entries=2), Neighbours(limit=1024, entries=30)
SHARED = Neighbours(limit=16, entries=9)  # four hosts on one kernel need 4 x 4
RANDOM = {(1, 3): "timeout", (2, 4): "unreachable", (4, 1): "timeout"}
ALL = "node1,node2,node3,node4"


@pytest.mark.parametrize(
    ("outcomes", "table", "boot", "found"),
    [
        ({}, ROOMY, None, []),
        ({}, None, None, []),
        ({}, SMALL, None, [f"neighbour-table {ALL} warn"]),
        ({}, SHARED, "one", [f"neighbour-table {ALL} warn"]),
        ({}, SHARED, None, []),
        (RANDOM, SHARED, "one", [f"neighbour-table {ALL} fail"]),
        (RANDOM, replace(ROOMY, entries=1024), None, [f"neighbour-table {ALL} fail"]),
        ({(1, 3): NO_BUFFERS}, None, None, ["neighbour-table node1 fail"]),
        ({(1, 3): "refused"}, SHARED, "one", ["nic-reach node1,node3 fail", f"neighbour-table {ALL} warn"]),
        (
            RANDOM,
            ROOMY,
            "one",
            [f"nic-reach {pair} fail" for pair in ("node1,node4", "node1,node3", "node2,node4")],
        ),
    ],
)
def test_what_is_whose_fault(
    outcomes: dict[tuple[int, int], str], table: Neighbours | None, boot: str | None, found: list[str]
) -> None:
    assert texts(findings(fleet_of(outcomes, table, boot=boot))) == found


def test_the_command_that_makes_room() -> None:
    (finding,) = findings(fleet_of(RANDOM, replace(SHARED, limit=12), boot="one"))
    assert finding.message == "the table of neighbours holds 12 entries, but these hosts need 16"
    assert finding.fix == (
        "on the machine of these hosts: sudo sysctl -w net.ipv4.neigh.default.gc_thresh1=8 "
        "net.ipv4.neigh.default.gc_thresh2=16 net.ipv4.neigh.default.gc_thresh3=32"
    )


@pytest.mark.parametrize(("boot", "playbook"), [(None, "tuning"), ("one", None)])
def test_a_playbook_makes_room_where_a_host_has_its_own_kernel(
    boot: str | None, playbook: str | None
) -> None:
    (finding,) = findings(fleet_of({}, SMALL, boot=boot))
    assert finding.playbook == playbook


def test_hosts_in_several_subnets_share_no_table() -> None:
    fleet = fleet_of({}, Neighbours(limit=4, entries=0))
    one = replace(fleet.facts["node1"], neighbours=Neighbours(limit=5, entries=0))
    other = replace(fleet, facts={**fleet.facts, "node1": one})
    assert only_finding(other, "neighbour-table", "node2", "node3", "node4").severity == "warn"
