"""One machine under several entries of the inventory."""

from __future__ import annotations

from typing import Any

import pytest
from fleets import findings, healthy, make_fleet, only_finding, texts

from mnt.facts.host import Machine
from mnt.network.decision import decide
from mnt.network.nic import NicProblem
from mnt.preflight.trips import training_nics

BOOT, OTHER = "2f1c0d9e-1111-4222-8333-444455556666", "7a6b5c4d-1111-4222-8333-444455556666"


def as_node1(**changes: Any) -> dict[str, Any]:
    """What a second entry of node1 answers."""
    one = healthy(1)
    return {
        "machine": Machine(BOOT, 4026531840),
        "hostname": one.hostname,
        "interfaces": one.interfaces,
        "resolved": one.resolved,
        **changes,
    }


NODE1 = {"machine": Machine(BOOT, 4026531840)}


def test_the_later_entry_is_told() -> None:
    finding = only_finding(make_fleet({"node1": NODE1, "node3": as_node1()}), "duplicate-host", "node3")
    assert (finding.severity, finding.message) == ("fail", "it is the same machine as node1")
    assert finding.found == f"node1 with boot id {BOOT}, as node1"
    assert finding.fix == "exclude it: -x node3; or correct its `address` in the inventory"


def test_three_entries_and_nothing_else() -> None:
    fleet = make_fleet({"node1": NODE1, "node2": as_node1(), "node3": as_node1()}, count=3)
    assert texts(findings(fleet)) == ["duplicate-host node2 fail", "duplicate-host node3 fail"]


@pytest.mark.parametrize(
    "other",
    [
        {"machine": Machine(BOOT, 4026532000), "hostname": "node2"},  # a container, or a host of the lab
        {"machine": Machine(BOOT, 4026532000), "hostname": "node1"},  # containers without names of their own
        {"machine": Machine(OTHER, 4026531840), "hostname": "node1"},  # the first namespace of any kernel
        {"machine": Machine(BOOT, 4026531840), "hostname": "node2"},  # restored from a snapshot, and renamed
        {"machine": None, "hostname": "node1"},
    ],
)
def test_other_machines(other: dict[str, Any]) -> None:
    assert make_fleet({"node1": NODE1, "node2": other}).twins() == {}


def test_no_network_is_decided_for_it_and_it_takes_no_part_in_trips() -> None:
    fleet = make_fleet({"node1": NODE1, "node2": as_node1()}, count=3)
    network = decide(fleet)
    assert isinstance(network.nodes["node2"].nic, NicProblem)
    assert list(network.nodes) == ["node1", "node2", "node3"]
    assert list(training_nics(fleet, network)) == ["node1", "node3"]
    obstacle = network.nodes["node2"].obstacle
    assert obstacle is not None
    assert "the same machine as node1" in obstacle[0]
