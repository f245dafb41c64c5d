"""Which NICs `mnt init` proposes, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from network_facts import DOCKER, LO, host, nic, roce, table

from mnt.facts.host import Interface
from mnt.init.training import Training, propose


def fast(name: str, address: str, speed: int | None = 100_000, mtu: int = 1500) -> Interface:
    return replace(nic(name, address), speed=speed, mtu=mtu)


MGMT = [fast("eno1", f"192.168.0.{number}/24", 1000) for number in (1, 2, 3)]
SSH = {"a": "192.168.0.1", "b": "192.168.0.2"}


def test_the_fastest_network_that_all_share() -> None:
    facts = {
        "a": host(LO, DOCKER, MGMT[0], fast("ens1", "10.0.0.1/24"), fast("x", "10.9.0.1/24", 400_000)),
        "b": host(LO, DOCKER, MGMT[1], fast("enp26s0np0", "10.0.0.2/24"), fast("y", "10.8.0.1/24", 400_000)),
    }
    found = propose(facts, SSH, {})
    assert (found.nics, found.subnet) == ({"a": "ens1", "b": "enp26s0np0"}, "10.0.0.0/24")
    assert found.reason == (
        "all hosts have a NIC in it (100 Gbit/s); they also share 192.168.0.0/24 (1 Gbit/s, SSH)"
    )


def test_the_slowest_host_counts() -> None:
    facts = {
        "a": host(MGMT[0], fast("ens1", "10.0.0.1/24", 400_000)),
        "b": host(MGMT[1], fast("ens1", "10.0.0.2/24", 100)),
    }
    assert propose(facts, SSH, {}).subnet == "192.168.0.0/24"


def test_equally_fast_not_that_of_ssh() -> None:
    facts = {
        "a": host(fast("eno1", "192.168.0.1/24"), fast("ens1", "10.0.0.1/24")),
        "b": host(fast("eno1", "192.168.0.2/24"), fast("ens1", "10.0.0.2/24")),
    }
    assert propose(facts, SSH, {}).subnet == "10.0.0.0/24"
    assert propose(facts, {"a": "10.0.0.1", "b": "10.0.0.2"}, {}).subnet == "192.168.0.0/24"


def test_equally_fast_with_rdma() -> None:
    facts = {
        name: host(
            fast("eno1", f"192.168.0.{number}/24"),
            fast("ens1", f"10.0.0.{number}/24"),
            hcas=[roce("mlx5_0", "eno1", table("eno1", f"192.168.0.{number}"))],
        )
        for number, name in enumerate("ab", 1)
    }
    found = propose(facts, SSH, {})
    assert found.subnet == "192.168.0.0/24"
    assert "(100 Gbit/s, RDMA, SSH)" in found.reason


def test_a_driver_that_reports_no_speed() -> None:
    facts = {
        "a": host(fast("eno1", "192.168.0.1/24", None), fast("ens1", "10.0.0.1/24", None, mtu=9000)),
        "b": host(fast("eno1", "192.168.0.2/24", None), fast("ens1", "10.0.0.2/24", None, mtu=9000)),
    }
    found = propose(facts, {}, {})
    assert (found.subnet, found.reason.split(";")[0]) == ("10.0.0.0/24", "all hosts have a NIC in it")


def test_several_nics_of_a_host_in_the_network() -> None:
    """As where each GPU has a NIC: one that has a link, the fastest, the first."""
    facts = {
        "a": host(
            replace(fast("n0", "10.0.0.1/24"), carrier=False),
            fast("n1", "10.0.0.2/24"),
            fast("n2", "10.0.0.3/24"),
        ),
        "b": host(fast("n0", "10.0.0.4/24", 10), fast("n1", "10.0.0.5/24")),
    }
    assert propose(facts, {}, {}).nics == {"a": "n1", "b": "n1"}


def test_a_nic_that_is_down_or_of_containers_is_none() -> None:
    facts = {
        "a": host(replace(fast("ens1", "10.0.0.1/24"), up=False), DOCKER, MGMT[0]),
        "b": host(fast("ens1", "10.0.0.2/24"), DOCKER, MGMT[1]),
    }
    assert propose(facts, SSH, {}).subnet == "192.168.0.0/24"


def test_routed_networks() -> None:
    """No two hosts share a subnet: each host's own NIC that leads to all others."""
    facts = {
        "a": host(fast("ens1", "10.0.1.1/24"), fast("eno1", "192.168.1.1/24")),
        "b": host(fast("ens2", "10.0.2.1/24"), fast("eno1", "192.168.2.1/24")),
        "c": host(fast("ens3", "10.0.3.1/24"), fast("eno1", "192.168.3.1/24")),
    }
    ssh = {"a": "10.0.1.1", "b": "10.0.2.1", "c": "10.0.3.1"}
    routes: dict[str, dict[str, str | None]] = {
        "a": {"10.0.2.1": "10.0.1.1", "10.0.3.1": "10.0.1.1"},
        "b": {"10.0.1.1": "10.0.2.1", "10.0.3.1": "10.0.2.1"},
        "c": {"10.0.1.1": "10.0.3.1", "10.0.2.1": "10.0.3.1"},
    }
    found = propose(facts, ssh, routes)
    assert (found.nics, found.subnet) == ({"a": "ens1", "b": "ens2", "c": "ens3"}, None)
    assert "carry the routes" in found.reason
    routes["c"]["10.0.2.1"] = "192.168.3.1"  # two ways: none is proposed
    found = propose(facts, ssh, routes)
    assert found.nics == {}
    assert "no NIC of c leads to all others" in found.reason
    routes["c"]["10.0.2.1"] = None
    assert propose(facts, ssh, routes).nics == {}


@pytest.mark.parametrize("lie", ["/1", "/0", "/8"])
def test_a_single_host_does_not_say_how_large_the_network_is(lie: str) -> None:
    facts = {
        name: host(MGMT[at], fast("ens1", f"10.0.0.{at + 1}/24")) for at, name in enumerate(("a", "b", "c"))
    }
    assert propose(facts, SSH, {}).subnet == "10.0.0.0/24"
    facts["c"] = host(fast("ens1", f"10.9.9.9{lie}"))
    assert propose(facts, SSH, {}).subnet is None
    facts["c"] = host(fast("ens1", f"10.0.0.3{lie}"))
    assert propose(facts, SSH, {}).subnet == "10.0.0.0/24"
    alike = {name: host(fast("ens1", f"10.0.0.{at}{lie}")) for at, name in enumerate("abc", 1)}
    assert propose(alike, SSH, {}).subnet == ("10.0.0.0/8" if lie == "/8" else None)


def test_a_single_host_needs_none() -> None:
    assert propose({"a": host(MGMT[0])}, SSH, {}).nics == {}
    assert propose({}, {}, {}) == Training()
