"""What `mnt net` shows: variables with the inventory's env in them, the shell's lines, the document."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from fleets import healthy
from network_facts import DOCKER, LO, host, nic, roce, table

from mnt.errors import HostError
from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts, Interface
from mnt.inventory.model import Host, Inventory, Network, Tuning
from mnt.network.decision import decide
from mnt.network.env import VARIABLES, Variable, with_inventory
from mnt.network.overview import NetworkOverview, network_overview
from mnt.preflight.registry import select
from mnt.preflight.report import run_checks

ETH0 = nic("eth0", "10.0.0.1/24")
A = host(LO, DOCKER, ETH0)
B = host(LO, nic("ens3", "10.0.0.2/24"))


def report(
    facts: dict[str, HostFacts],
    *,
    env: dict[str, str] | None = None,
    lost: tuple[str, ...] = (),
    **network: Any,
) -> NetworkOverview:
    hosts = tuple(Host(name, name, env=env or {}) for name in (*facts, *lost))
    inventory = Inventory("c", "c.yaml", hosts, network=Network(**network))
    errors = {name: HostError(name, "connect", "timed out", fix="look at it") for name in lost}
    fleet = FleetFacts(inventory, hosts, facts, errors)
    return network_overview(fleet, decide(fleet))


def test_every_key_of_tuning_has_a_variable() -> None:
    assert Tuning.__struct_fields__ == tuple(VARIABLES)


def test_the_inventorys_env_stands_among_the_variables() -> None:
    computed = [
        Variable("NCCL_SOCKET_IFNAME", "=eth0", "eth0: inventory"),
        Variable("NCCL_DEBUG", "WARN", "x"),
    ]
    env = {"NCCL_SOCKET_IFNAME": "bond0", "NCCL_DEBUG": "WARN", "TORCH_NCCL_BLOCKING_WAIT": "1", "HOME": "/x"}
    assert with_inventory(computed, env) == [
        Variable("NCCL_SOCKET_IFNAME", "bond0", "inventory: env; computed: =eth0 (eth0: inventory)"),
        Variable("NCCL_DEBUG", "WARN", "x"),
        Variable("TORCH_NCCL_BLOCKING_WAIT", "1", "inventory: env"),
    ]


def test_two_hosts() -> None:
    found = report({"a": A, "b": B})
    assert found.ok
    document = json.loads(json.dumps(found.document()))
    assert (document["ok"], document["mode"]) == (True, "tcp")
    assert document["reason"] == "auto: a: there is no RDMA device"
    a = document["hosts"]["a"]
    assert (a["status"], a["nic"], a["address"], a["problem"], a["conflicts"]) == (
        "ok",
        "eth0",
        "10.0.0.1",
        None,
        [],
    )
    assert a["variables"][0] == {
        "name": "NCCL_SOCKET_IFNAME",
        "value": "=eth0",
        "reason": "eth0: every worker has an address in 10.0.0.0/24",
    }
    assert a["expected"]["text"] == "sockets over eth0 10.0.0.1"


def test_a_host_that_cannot_be_reached_leaves_the_others_their_answer() -> None:
    found = report({"a": A}, lost=("b",))
    assert not found.ok
    document = found.document()
    assert list(document["hosts"]) == ["a", "b"]
    assert document["hosts"]["a"]["status"] == "ok"
    assert document["hosts"]["b"] == {
        "status": "unreachable",
        "problem": {"message": "b: connect: timed out", "fix": "look at it"},
    }


def test_a_host_that_has_not_what_the_mode_needs() -> None:
    found = report({"a": A}, mode="rdma")
    assert not found.ok
    assert found.nodes["a"].network.obstacle == (
        "RDMA: there is no RDMA device",
        "set network.mode to tcp, or load the NIC's RDMA driver",
    )
    assert found.document()["hosts"]["a"]["variables"] == []


def test_a_host_without_a_nic_lists_what_there_is() -> None:
    problem = report({"a": A}, nic="eth9").nodes["a"].network.obstacle
    assert problem is not None
    assert problem[0] == "training NIC: there is no NIC eth9 (found: docker0 172.17.0.1/16, eth0 10.0.0.1/24)"


def test_a_host_that_says_nothing_of_its_interfaces() -> None:
    found = report({"a": HostFacts("a")})
    assert "did not report its interfaces" in found.errors["a"].message


def test_rdma_ports_in_the_document() -> None:
    device = roce("mlx5_0", "eth0", table("eth0", "10.0.0.1"))
    (hca,) = report({"a": host(ETH0, hcas=[device])}).document()["hosts"]["a"]["hcas"]
    assert hca == {
        "device": "mlx5_0",
        "port": 1,
        "link_layer": "Ethernet",
        "rate": 400.0,
        "gid_index": 3,
        "gid": "10.0.0.1",
        "reason": "carries eth0",
    }


def test_a_shell_gets_back_every_byte() -> None:
    value = 'it\'s $HOME "and" `more`; =x\\ '
    node = report({"a": A}, env={"NCCL_TEST": value}).nodes["a"]
    script = "\n".join([*node.shell(), 'printf %s "$NCCL_TEST$NCCL_SOCKET_IFNAME"'])
    assert "export NCCL_SOCKET_IFNAME='=eth0'" in node.shell()
    shell = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert shell.stdout == value + "=eth0"


# --- net, preflight and launch agree on whose problem it is ------------------------------------------------

OFF = nic("eth0", "10.9.0.1/24")


def two(last: int) -> list[Interface]:
    return [nic("mgmt0", f"192.168.0.{last}/24"), nic("eth0", f"10.0.0.{last}/24")]


@pytest.mark.parametrize(
    ("interfaces", "blamed"),
    [
        # The master is in another subnet than its workers, and nothing hints at a NIC.
        ([[OFF], [nic("ens3", "10.0.0.2/24")], [nic("ens3", "10.0.0.3/24")]], ["a"]),
        ([[OFF], [nic("ens3", "10.0.0.2/24")]], ["a"]),
        # Two networks join all: which of them trains is one question, and the master's.
        ([two(1), two(2), two(3)], ["a"]),
        # The master and a worker are lost; two others could train.
        ([[OFF], [nic("x", "10.8.0.1/24")], *([nic("s", f"10.0.0.{n}/24")] for n in (3, 4))], ["a", "b"]),
        ([[nic("ens3", f"10.0.0.{n}/24")] for n in (1, 2, 3)], []),
    ],
)
def test_net_and_preflight_blame_the_same_hosts(interfaces: Any, blamed: list[str]) -> None:
    facts = {
        name: replace(healthy(1), interfaces=tuple(nics))
        for name, nics in zip("abcd", interfaces, strict=False)
    }
    hosts = tuple(Host(name, name) for name in facts)
    fleet = FleetFacts(Inventory("c", "c.yaml", hosts, network=Network()), hosts, facts)
    network = decide(fleet)
    found = run_checks(fleet, network, select(only=["nic"])).findings
    nodes = network_overview(fleet, network).nodes
    assert sorted({host for finding in found for host in finding.hosts}) == blamed
    assert [name for name, node in nodes.items() if node.status == "fail"] == blamed
    assert {node.network.waits_for for node in nodes.values()} <= {None, "a"}
