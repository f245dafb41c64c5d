"""What a trial really used: NCCL's lines and gloo's sockets read, and held against what was set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from network_facts import LO, decision, host, nic, roce, table

from mnt.facts.fleet import FleetFacts
from mnt.facts.trial import Trial, TrialCulprit
from mnt.inventory.model import Host, Inventory, Network
from mnt.network.decision import NodeNetwork, decide
from mnt.network.overview import NetworkOverview, network_overview
from mnt.network.used import Carrier, Used, differences, read_gloo, read_nccl

ETH0, MGMT0 = nic("eth0", "10.0.0.1/24", "10.0.0.7/24", v6=["fe80::1/64"]), nic("mgmt0", "192.0.2.1/24")

# Seen: NCCL 2.28.9 without an HCA; a RoCE bond with a plugin; DGX-like InfiniBand; FastSocket; two NICs.
SOCKETS = ("NET/Socket : Using [0]eth0:192.0.2.2<0>", "Using network Socket")
TWO_NICS = ("NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:fe80::1%eth1<0>", "Using network Socket")
ROCE = ("NET/IB : Using [0]mlx5_6:1/RoCE [1]mlx5_7:1/RoCE [RO]; OOB eth0:10.0.0.1<0>", "Using network IB")
PLUGIN = (
    "NET/IB : Using [0]mlx5_bond_6:1/RoCE [1]mlx5_bond_7:1/RoCE [RO]; OOB bond0:192.0.2.22<0>",
    "Using network NCCL RDMA Plugin v6",
)
IB = ("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:2/IB/SHARP [RO]; OOB eno1:192.0.2.9<0>",)
MERGED = (
    "NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [RO]; OOB eth0:10.0.0.1<0>",
    "Using network IB",
)
FAST = ("NET/FastSocket : Using [0]ibs108:10.0.19.12<0> [1]ibs109:10.0.19.13<0>", "Using network FastSocket")


@pytest.mark.parametrize(
    ("said", "gids", "text"),
    [
        (SOCKETS, {}, "sockets over eth0 192.0.2.2"),
        (SOCKETS[:1], {}, "sockets over eth0 192.0.2.2"),
        (TWO_NICS, {}, "sockets over eth0 10.0.0.1, eth1 fe80::1%eth1"),
        (ROCE, {}, "RDMA over mlx5_6:1, mlx5_7:1; bootstrap over eth0 10.0.0.1"),
        (ROCE, {0: 3, 1: 5}, "RDMA over mlx5_6:1 GID 3, mlx5_7:1 GID 5; bootstrap over eth0 10.0.0.1"),
        (PLUGIN, {}, "RDMA over mlx5_bond_6:1, mlx5_bond_7:1; bootstrap over bond0 192.0.2.22"),
        (IB, {}, "RDMA over mlx5_0:1, mlx5_1:2; bootstrap over eno1 192.0.2.9"),
        (MERGED, {0: 3}, "RDMA over mlx5_0:1, mlx5_1:1; bootstrap over eth0 10.0.0.1"),
        (FAST, {}, "FastSocket over ibs108 10.0.19.12, ibs109 10.0.19.13"),
        ((*ROCE[:1], *SOCKETS), {0: 3}, "sockets over eth0 192.0.2.2"),
        ((*SOCKETS[:1], *ROCE), {}, "RDMA over mlx5_6:1, mlx5_7:1; bootstrap over eth0 10.0.0.1"),
        (("Using network AWS Libfabric",), {}, "AWS Libfabric over an unknown interface"),
    ],
)
def test_what_nccl_says(said: tuple[str, ...], gids: Mapping[int, int], text: str) -> None:
    used = read_nccl(said, gids)
    assert used is not None
    assert (str(used), used.evidence) == (text, said)


def test_what_nccl_does_not_say() -> None:
    assert read_nccl((), {0: 3}) is None


@pytest.mark.parametrize(
    ("sockets", "text", "said"),
    [
        (
            [("10.0.0.1", ""), ("10.0.0.1", "10.0.0.2")],
            "sockets over eth0 10.0.0.1",
            ("10.0.0.1 listens", "10.0.0.1 to 10.0.0.2"),
        ),
        ([("fe80::1", "")], "sockets over eth0 fe80::1", ("fe80::1 listens",)),
        ([("127.0.1.1", "")], "sockets over lo 127.0.1.1", ("127.0.1.1 listens",)),
        ([("10.9.9.9", "10.0.0.2")], "sockets over ? 10.9.9.9", ("10.9.9.9 to 10.0.0.2",)),
        (
            [("10.0.0.1", ""), ("192.0.2.1", "10.0.0.2")],
            "sockets over eth0 10.0.0.1, mgmt0 192.0.2.1",
            ("10.0.0.1 listens", "192.0.2.1 to 10.0.0.2"),
        ),
    ],
)
def test_what_the_sockets_of_gloo_say(
    sockets: list[tuple[str, str]], text: str, said: tuple[str, ...]
) -> None:
    used = read_gloo(sockets, (LO, ETH0, MGMT0))
    assert used is not None
    assert (str(used), used.evidence) == (text, said)


def test_no_sockets_say_nothing() -> None:
    assert read_gloo((), (ETH0,)) is None


def node(mode: str) -> tuple[NodeNetwork, dict[str, str]]:
    """A host with two RoCE devices over eth0, and its variables."""
    devices = [roce(name, "eth0", table("eth0", "10.0.0.1")) for name in ("mlx5_6", "mlx5_7")]
    facts = {"a": host(LO, nic("eth0", "10.0.0.1/24"), hcas=devices)}
    decided, _ = decision(facts, mode=mode, nic="eth0")
    network = decided.nodes["a"]
    return network, {variable.name: variable.value for variable in network.variables}


def by(backend: str, *interfaces: str, transport: str = "Socket", **hcas: int | None) -> Used:
    carriers = tuple(Carrier(*interface.split(" ")) for interface in interfaces)
    return Used(backend, transport, carriers, {f"{name}:1": gid for name, gid in hcas.items()})


GOOD = {"mlx5_6": 3, "mlx5_7": 3}


@pytest.mark.parametrize(
    ("mode", "env", "used", "found"),
    [
        ("tcp", {}, by("gloo", "eth0 10.0.0.1"), ()),
        ("tcp", {}, by("nccl", "eth0 10.0.0.1"), ()),
        ("rdma", {}, by("nccl", "eth0 10.0.0.1", transport="IB", **GOOD), ()),
        ("rdma", {}, by("nccl", "eth0 10.0.0.1", transport="IB", mlx5_6=None, mlx5_7=None), ()),
        ("rdma", {}, by("gloo", "eth0 10.0.0.1"), ()),
        ("tcp", {"GLOO_SOCKET_IFNAME": "mgmt0"}, by("gloo", "mgmt0 192.0.2.1"), ()),
        ("tcp", {"NCCL_SOCKET_IFNAME": "^mgmt"}, by("nccl", "eth0 10.0.0.1"), ()),
        (
            "tcp",
            {},
            by("gloo", "eth0 10.0.0.1", "mgmt0 192.0.2.1"),
            ("mgmt0 192.0.2.1 is used, but GLOO_SOCKET_IFNAME=eth0 is set",),
        ),
        (
            "tcp",
            {},
            by("gloo", "eth00 10.0.0.1"),
            ("eth00 10.0.0.1 is used, but GLOO_SOCKET_IFNAME=eth0 is set",),
        ),
        (
            "tcp",
            {},
            by("nccl", "eth0 10.0.0.7"),
            ("eth0 is used with address 10.0.0.7, not with its training address 10.0.0.1",),
        ),
        (
            "tcp",
            {},
            by("nccl"),
            ("it is unknown which interface was used, but NCCL_SOCKET_IFNAME==eth0 is set",),
        ),
        (
            "tcp",
            {},
            by("nccl", "eth0 10.0.0.1", transport="IB", **GOOD),
            ("RDMA over mlx5_6:1, mlx5_7:1 is used, but the mode is tcp",),
        ),
        (
            "rdma",
            {},
            by("nccl", "eth0 10.0.0.1"),
            ("Socket is used and no RDMA port, but the mode is rdma",),
        ),
        (
            "rdma",
            {},
            by("nccl", "eth0 10.0.0.1", transport="IB", mlx5_6=1, mlx5_66=3),
            (
                "mlx5_66:1 is used, but NCCL_IB_HCA==mlx5_6,mlx5_7 is set",
                "mlx5_6:1 is used with GID 1, not 3",
                "mlx5_7:1 is not used, but NCCL_IB_HCA==mlx5_6,mlx5_7 is set",
            ),
        ),
    ],
)
def test_whether_it_is_what_was_set(
    mode: str, env: dict[str, str], used: Used, found: tuple[str, ...]
) -> None:
    network, variables = node(mode)
    assert differences(used, network, {**variables, **env}, mode) == found


# --- in the report ---------------------------------------------------------------------------------------


def report(trial: Trial | None) -> NetworkOverview:
    facts = {"a": host(LO, nic("eth0", "10.0.0.1/24")), "b": host(LO, nic("ens3", "10.0.0.2/24"), MGMT0)}
    hosts = tuple(Host(name, name) for name in facts)
    inventory = Inventory("c", "c.yaml", hosts, network=Network())
    fleet = FleetFacts(inventory, hosts, facts, trial=trial)
    return network_overview(fleet, decide(fleet))


WELL: dict[str, Any] = {
    "backends": {"a": "gloo", "b": "gloo"},
    "world_size": 2,
    "sockets": {"a": (("10.0.0.1", "10.0.0.2"),), "b": (("10.0.0.2", "10.0.0.1"),)},
}


def test_without_a_trial_nothing_is_said_of_it() -> None:
    document = report(None).document()
    assert "deep" not in document
    assert "used" not in document["hosts"]["a"]


def test_a_trial_that_used_what_was_set() -> None:
    found = report(Trial(("a", "b"), **WELL))
    assert found.ok
    document = json.loads(json.dumps(found.document()))
    assert document["deep"] == {"ok": True, "problem": None, "backend": "gloo", "world_size": 2}
    assert document["hosts"]["b"]["used"] == {
        "backend": "gloo",
        "transport": "Socket",
        "interfaces": ["ens3 10.0.0.2"],
        "hcas": [],
        "said": ["10.0.0.2 to 10.0.0.1"],
        "text": "sockets over ens3 10.0.0.2",
        "as_set": True,
        "differs": [],
    }


def test_a_trial_that_used_something_else() -> None:
    found = report(Trial(("a", "b"), **{**WELL, "sockets": {"b": (("192.0.2.1", "192.0.2.2"),)}}))
    assert not found.ok
    assert found.nodes["a"].differences == ("the trial did not show which network it used",)
    assert found.nodes["b"].differences == ("mgmt0 192.0.2.1 is used, but GLOO_SOCKET_IFNAME=ens3 is set",)


def test_a_trial_that_failed_blames_no_node_for_what_was_not_seen() -> None:
    found = report(Trial(("a", "b"), culprit=TrialCulprit("b", "ImportError: libcudart.so.13")))
    assert not found.ok
    assert found.nodes["a"].differences == ()
    document = found.document()
    assert document["hosts"]["a"]["used"] is None
    assert document["deep"]["problem"]["message"] == "b: the trial failed: ImportError: libcudart.so.13"
