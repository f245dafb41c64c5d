"""Checks of the training network: NIC facts, routes, MTU; and whom each host tries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from fleets import findings, healthy, make_fleet, nic, only_finding, texts

from mnt.facts.fleet import FleetFacts
from mnt.facts.gather_further import ALL_PAIRS, _targets, peers
from mnt.facts.host import Interface, Traffic
from mnt.facts.reach import Reach, Reached, TrainingNic
from mnt.network.decision import decide
from mnt.preflight.findings import Severity
from mnt.preflight.trips import training_nics
from mnt.remote.net.reach import proof
from mnt.tasks.reach import Listening

LO = nic("lo", "127.0.0.1/8")


def reached(source: int, target: int, **changes: Any) -> Reached:
    well = Reached(route=f"eth{source}", latency=1e-4, mtu=1500, full=True, master="ok", ports={4: "ok"})
    return replace(well, **changes)


def fleet_with_reach(
    changes: Mapping[tuple[int, int], Mapping[str, Any]],
    *,
    mtu: Mapping[int, int] | None = None,
    errors: Mapping[str, str] | None = None,
) -> FleetFacts:
    """Four hosts who see each other; `changes` by pair."""
    numbers = range(1, 5)
    endpoints = {
        f"node{n}": TrainingNic(f"eth{n}", f"10.0.0.{n}", "10.0.0.0/24", (mtu or {}).get(n, 1500))
        for n in numbers
    }
    pairs = {
        f"node{a}": {f"node{b}": reached(a, b, **changes.get((a, b), {})) for b in numbers if a != b}
        for a in numbers
    }
    return replace(make_fleet(), reach=Reach(endpoints, pairs, errors or {}))


def test_a_healthy_network_is_well() -> None:
    assert findings(fleet_with_reach({})) == []


def test_nobody_tried() -> None:
    assert findings(make_fleet()) == []


def test_a_host_that_took_no_part() -> None:
    finding = only_finding(fleet_with_reach({}, errors={"node2": "connection lost"}), "nic-reach", "node2")
    assert finding.message == "the host took no part in the test: connection lost"


def test_a_host_that_nobody_gets_in_to() -> None:
    closed = {(n, 3): {"master": "timeout", "ports": {4: "timeout"}} for n in (1, 2, 4)}
    only_finding(fleet_with_reach(closed), "nic-reach", "node3")


# --- route -----------------------------------------------------------------------------------------------


def test_a_route_through_another_nic() -> None:
    finding = only_finding(fleet_with_reach({(2, 3): {"route": "mgmt0"}}), "route", "node2")
    assert finding.message == "traffic to node3 leaves through mgmt0, not the training NIC eth2"
    assert "ip route get 10.0.0.3" in finding.fix
    assert finding.fix.endswith(", or until the next boot: sudo ip route replace 10.0.0.3/32 dev eth2")


def test_no_peer_says_what_leaves_by_the_training_nic() -> None:
    """It says that it has an address of somebody else."""
    fleet = fleet_with_reach({(2, 3): {"route": "mgmt0"}})
    lie = replace(fleet.reach.nics["node3"], address="198.51.100.7")
    fleet = replace(fleet, reach=replace(fleet.reach, nics={**fleet.reach.nics, "node3": lie}))
    assert "replace" not in only_finding(fleet, "route", "node2").fix


def test_a_stray_route_explains_what_does_not_get_through() -> None:
    lost: dict[str, Any] = {"master": "timeout", "ports": {4: "timeout"}}
    only_finding(fleet_with_reach({(2, 3): {"route": "mgmt0", **lost}, (3, 2): lost}), "route", "node2")


def test_all_routes_through_another_nic_are_one_finding() -> None:
    strays = {(2, n): {"route": "mgmt0"} for n in (1, 3, 4)}
    assert "to every other host" in only_finding(fleet_with_reach(strays), "route", "node2").message


# --- MTU -------------------------------------------------------------------------------------------------


def test_an_mtu_that_differs_is_a_warning() -> None:
    finding = only_finding(fleet_with_reach({}, mtu={2: 9000}), "mtu", "node2")
    assert finding.severity is Severity.WARN
    assert finding.fix == "sudo ip link set eth2 mtu 1500"


@pytest.mark.parametrize(
    ("lost", "host", "way"),
    [
        ([(1, 3), (2, 3), (4, 3)], "node3", "to it"),
        ([(3, 1), (3, 2), (3, 4)], "node3", "from it"),
        ([(1, 3), (2, 3), (4, 3), (3, 1), (3, 2), (3, 4)], "node3", "to and from it"),
    ],
)
def test_full_packets_that_never_arrive(lost: list[tuple[int, int]], host: str, way: str) -> None:
    finding = only_finding(fleet_with_reach({pair: {"full": False} for pair in lost}), "mtu", host)
    assert finding.severity is Severity.FAIL
    assert finding.message == f"full-size packets {way} are lost, but small packets arrive"


@pytest.mark.parametrize("lost", [[(1, 2)], [(1, 2), (1, 3)]])
def test_who_alone_says_that_full_packets_do_not_arrive_counts_too(lost: list[tuple[int, int]]) -> None:
    found = findings(fleet_with_reach({pair: {"full": False} for pair in lost}))
    assert [each.hosts for each in found] == [("node1", f"node{target}") for _, target in lost]
    assert found[0].message.startswith("node2, as only node1 says: full-size packets from node1 are lost")


# --- NIC facts -------------------------------------------------------------------------------------------


def with_nic(host: int, *others: Interface, **changes: Any) -> dict[str, Any]:
    own = replace(nic(f"eth{host}", f"10.0.0.{host}/24"), **changes)
    return {f"node{host}": {"interfaces": (LO, own, *others)}}


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (nic("eth9", "192.168.0.2/24", "192.168.1.9/24"), None),
        (nic("mgmt0", "10.0.0.200/24"), "eth2 and mgmt0 are both in 10.0.0.0/24"),
        (nic("mgmt0", "10.0.0.200/8"), "eth2 and mgmt0 are both in 10.0.0.0/24"),
        (nic("mgmt0", "10.0.7.200/8"), None),  # in the wider network of one, not in that of the other
        (nic("tun0", "10.0.0.2/32"), None),
        (nic("mgmt0", "10.0.0.200/24", up=False), None),
        (nic("mgmt0"), None),
    ],
)
def test_two_nics_in_one_subnet(other: Interface, found: str | None) -> None:
    fleet = make_fleet(with_nic(2, other))
    overlaps = [each for each in findings(fleet) if each.check == "subnet-overlap"]
    assert [each.message for each in overlaps] == ([found] if found else [])
    for each in overlaps:
        assert "ip route replace 10.0.0.0/24 dev mgmt0 src 10.0.0.200 table 213 && " in each.fix
        assert "sudo ip rule add from 10.0.0.200 table 213 && " in each.fix


def test_a_slow_link() -> None:
    fleet = make_fleet({**with_nic(1, speed=100000), **with_nic(2, speed=10000), **with_nic(3, speed=100000)})
    finding = only_finding(fleet, "nic-speed", "node2")
    assert (finding.severity, finding.found) == (Severity.WARN, "10000 Mbit/s")


def test_links_that_tell_no_speed_are_no_verdict() -> None:
    assert findings(make_fleet(with_nic(1, speed=100000))) == []


@pytest.mark.parametrize(
    ("traffic", "found"),
    [
        (None, []),
        (Traffic(), []),
        (Traffic(received=10**9, receive_errors=10**3, receive_drops=10**5), []),
        (Traffic(received=10**6, receive_errors=11), ["11 receive errors"]),
        (Traffic(sent=10**6, send_errors=200), ["200 send errors"]),
        (Traffic(received=100, receive_errors=9), []),
        (Traffic(received=10**4, receive_drops=1001), ["1001 receive drops"]),
        (Traffic(sent=10**6, send_errors=20, send_drops=20000), ["20 send errors", "20000 send drops"]),
    ],
)
def test_what_a_nic_has_counted(traffic: Traffic | None, found: list[str]) -> None:
    fleet = make_fleet(with_nic(2, traffic=traffic))
    assert [each.found for each in findings(fleet)] == found
    assert texts(findings(fleet)) == ["nic-errors node2 warn"] * len(found)


# --- who takes part, and whom each tries -----------------------------------------------------------------


def test_hosts_whose_nic_does_not_work_take_no_part() -> None:
    fleet = make_fleet(
        {
            "node1": {"interfaces": (LO, nic("eth1", "10.0.0.1/24", up=False))},
            "node2": {"interfaces": (LO,)},
            "node3": {"python": None},
        },
        count=5,
    )
    assert training_nics(fleet, decide(fleet)) == {
        f"node{n}": TrainingNic(f"eth{n}", f"10.0.0.{n}", "10.0.0.0/24", 1500) for n in (4, 5)
    }


@pytest.mark.parametrize("count", [2, 3, ALL_PAIRS])
def test_all_try_all_others(count: int) -> None:
    hosts = [f"node{n}" for n in range(count)]
    tried = peers(hosts, hosts[0])
    assert {host: sorted(others) for host, others in tried.items()} == {
        host: sorted({*hosts} - {host}) for host in hosts
    }


@pytest.mark.parametrize("count", [3, ALL_PAIRS, ALL_PAIRS + 1, 256])
def test_nobody_is_tried_by_all_at_the_same_time(count: int) -> None:
    hosts = [f"node{n}" for n in range(count)]
    assert len({others[0] for others in peers(hosts, hosts[0]).values()}) == count


@pytest.mark.parametrize("master", ["node0", "node100", "elsewhere"])
def test_of_many_hosts_each_tries_some_and_the_master_all(master: str) -> None:
    hosts = [f"node{n}" for n in range(256)]
    tried = peers(hosts, master)
    assert max(len(others) for host, others in tried.items() if host != master) <= 2 * 8
    for host in hosts:
        assert host not in tried[host]
        assert len(set(tried[host])) == len(tried[host])
        if master in hosts and host != master:
            assert host in tried[master]
            assert master in tried[host]
        for other in tried[host]:
            assert host in tried[other]


def test_the_fixture_has_a_nic_that_can_take_part() -> None:
    assert healthy(1).interfaces[1].name == "eth1"


def test_no_host_can_answer_for_another_one() -> None:
    """Each pair has its own nonce, and no answer is that of another port or pair."""
    hosts = ["node1", "node2", "node3"]
    nics = {host: TrainingNic("eth0", f"10.0.0.{i}", "10.0.0.0/24", 1500) for i, host in enumerate(hosts)}
    tokens = {host: host.encode() * 4 for host in hosts}
    listening: dict[str, Listening] = {
        host: {"ports": [40001, 40002], "master": host != "node2"} for host in hosts
    }
    targets = [each for found in _targets(nics, tokens, 29500, "node1", listening).values() for each in found]
    assert len({each["nonce"] for each in targets}) == len(targets) == 6
    answers = [answer for each in targets for answer in each["answers"].values()]
    assert len(set(answers)) == len(answers) == 6 * 3
    assert not any(token.hex() in str(targets) for token in tokens.values())
    for each in targets:
        for port in (*each["ports"], 29500):
            answer = proof(tokens[each["name"]], bytes.fromhex(each["nonce"]), port)
            assert each["answers"][port] == answer.hex()


def test_a_stranger_in_place_of_a_host() -> None:
    """It is named, and the connections to it count as failed."""
    outcomes = {"master": "another host answers", "ports": {4: "another host answers"}}
    finding = only_finding(fleet_with_reach({(n, 3): outcomes for n in (1, 2, 4)}), "nic-reach", "node3")
    assert finding.found == "connections end with: another host answers"
