"""Who reaches whom over the training network, on real hosts: many of them, and more than one at fault."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faults
import pytest
import yaml
from lab_fleets import fleet_of, hosts_of
from waiting import at_most, wait_for

from mnt.facts.gather_further import gather_reach
from mnt.inventory import loader
from mnt.lab.lab import Lab
from mnt.preflight.look import first_look
from mnt.preflight.reachability import grade
from mnt.preflight.trips import training_nics
from mnt.tasks.program import held

MakeLab = Callable[..., Lab]
RunMnt = Callable[..., subprocess.CompletedProcess[str]]

PYTHON = "/usr/bin/python3"
MANY = 64


def reach_findings(run_mnt: RunMnt, *args: str, lab: Lab) -> list[dict[str, Any]]:
    done = run_mnt("preflight", "--json", "--only", "nic,nic-reach,route,mtu", *args, lab=lab)
    assert done.returncode in (0, 1), done.stderr
    findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return findings


@pytest.mark.timing
def test_sixty_four_hosts_all_reach_each_other(make_lab: MakeLab) -> None:
    lab = make_lab(count=MANY, python=PYTHON)
    hosts = hosts_of(lab)
    with fleet_of(lab) as fleet:
        facts, network = first_look(fleet, loader.load(str(lab.inventory_path)), hosts)
        nics = training_nics(facts, network)
        with at_most(10):
            reach = gather_reach(fleet, nics, facts.master.name, facts.master_port)
    assert reach is not None
    assert reach.errors == {}
    pairs = [reached for seen in reach.pairs.values() for reached in seen.values()]
    assert len(pairs) == MANY * (MANY - 1)
    assert all(grade(reached) is None and reached.full for reached in pairs)
    assert {reach.nics[host].name for host in reach.pairs} == {host.spec.nic for host in lab.hosts}


def test_listeners_end_with_the_connection(make_lab: MakeLab) -> None:
    lab = make_lab(count=1, python=PYTHON)
    host = lab.host("node1")
    args = {"address": host.spec.training, "token": "", "master": 29500, "samples": 3}

    def ports() -> list[str]:
        return [line for line in host.exec(["ss", "-Hltn"]).stdout.splitlines() if host.spec.training in line]

    with fleet_of(lab) as fleet, held(fleet.connection("node1"), "net.reach", args) as frame:
        assert len(frame["listening"]["ports"]) == 3
        assert len(ports()) == 4
        fleet.close()
        wait_for(lambda: ports() == [])


def test_two_halves(make_lab: MakeLab, run_mnt: RunMnt) -> None:
    lab = make_lab(count=4, python=PYTHON)
    with faults.partitioned(lab, lab.host("node3"), lab.host("node4")):
        (finding,) = reach_findings(run_mnt, lab=lab)
    assert finding["hosts"] == ["node1", "node2", "node3", "node4"]
    assert finding["message"] == "these do not reach each other: node[1-2] | node[3-4]"


def test_two_subnets_without_a_route(make_lab: MakeLab, run_mnt: RunMnt, tmp_path: Path) -> None:
    lab = make_lab(count=4, python=PYTHON)
    host = lab.host("node3")
    for words in (["flush", "dev", host.spec.nic], ["add", "192.0.2.3/24", "dev", host.spec.nic]):
        assert host.exec(["ip", "addr", *words]).returncode == 0
    document = yaml.safe_load(lab.inventory_path.read_text())
    del document["network"]["subnet"]
    for each in lab.hosts:
        document["hosts"][each.name]["nic"] = each.spec.nic
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(yaml.safe_dump(document, sort_keys=False))
    (finding,) = reach_findings(run_mnt, "-i", str(inventory), lab=lab)
    assert (finding["check"], finding["hosts"]) == ("nic-reach", ["node3"])
    assert "2 subnets without a route between them, 192.0.2.0/24 (node3) and " in finding["message"]
    assert "unreachable" in finding["found"]


def test_a_switch_with_a_smaller_mtu_everywhere(make_lab: MakeLab, run_mnt: RunMnt) -> None:
    lab = make_lab(count=3, python=PYTHON)
    for host in lab.hosts:
        assert host.exec(["ip", "link", "set", host.spec.nic, "mtu", "9000"]).returncode == 0
    (finding,) = reach_findings(run_mnt, lab=lab)
    assert (finding["check"], finding["hosts"]) == ("mtu", ["node1", "node2", "node3"])
    assert finding["found"] == "a packet of 9000 bytes does not arrive"


def test_one_host_alone_has_nobody_to_reach(make_lab: MakeLab, run_mnt: RunMnt) -> None:
    assert reach_findings(run_mnt, lab=make_lab(count=1, python=PYTHON)) == []


def test_a_master_port_in_use_is_not_disturbed(make_lab: MakeLab, run_mnt: RunMnt) -> None:
    lab = make_lab(count=3, python=PYTHON)
    with faults.port_taken(lab.host("node2"), 29500):
        assert reach_findings(run_mnt, lab=lab) == []
