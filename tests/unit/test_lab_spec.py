"""What a lab is to be: names, networks, NICs, rates."""

from __future__ import annotations

import grp
import ipaddress
import itertools

import pytest

from mnt.errors import MntError, UsageError
from mnt.lab import network, spec, system
from mnt.lab.spec import LabRequest


def plan(subnet: str = "10.213.0.0/22", **request: object) -> spec.LabSpec:
    return spec.plan(
        LabRequest(**request),  # type: ignore[arg-type]
        token="0123abcd",
        subnet=subnet,
        uid=2_100_000_000,
        python="/usr/bin/python3",
    )


def test_nic_names_are_dealt_in_turn() -> None:
    assert [host.nic for host in plan(count=5).hosts] == ["eth0", "enp26s0np0", "ens3f0", "eno1", "eth0"]
    assert [host.nic for host in plan(count=3, nics=("ib0", "bond0")).hosts] == ["ib0", "bond0", "ib0"]


@pytest.mark.parametrize(
    ("gpus", "hosts", "shares"),
    [
        (0, 3, [(), (), ()]),
        (2, 2, [(0,), (1,)]),
        (8, 2, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (8, 3, [(0, 1, 2), (3, 4, 5), (6, 7)]),
        (4, 4, [(0,), (1,), (2,), (3,)]),
    ],
)
def test_gpus_are_dealt_in_disjoint_shares(gpus: int, hosts: int, shares: list[tuple[int, ...]]) -> None:
    assert spec.deal(gpus, hosts) == shares
    assert [host.gpus for host in plan(count=hosts, gpus=gpus).hosts] == shares


def test_every_host_of_a_lab_with_gpus_has_one() -> None:
    with pytest.raises(UsageError, match="2 GPUs are too few for 4 hosts"):
        plan(count=4, gpus=2)


@pytest.mark.parametrize(
    ("text", "found", "gpus"), [("auto", 0, 0), ("auto", 8, 8), ("2", 8, 2), ("0", 8, 0), ("8", 8, 8)]
)
def test_how_many_gpus(text: str, found: int, gpus: int) -> None:
    assert spec.parse_gpus(text, found) == gpus


@pytest.mark.parametrize(("text", "found"), [("1", 0), ("9", 8), ("all", 8), ("-1", 8), ("", 8), ("1.5", 8)])
def test_gpus_that_the_machine_does_not_have(text: str, found: int) -> None:
    with pytest.raises(UsageError, match=f"this machine has {found} GPUs"):
        spec.parse_gpus(text, found)


def test_the_largest_lab_has_an_address_in_each_network_for_every_host() -> None:
    lab = plan(count=spec.MAX_HOSTS)
    for attribute, own in (("management", lab.management), ("training", lab.training)):
        addresses = [ipaddress.IPv4Address(getattr(host, attribute)) for host in lab.hosts]
        assert len({*addresses, ipaddress.IPv4Address(lab.head_address)}) >= spec.MAX_HOSTS
        assert all(address in own and address != own.broadcast_address for address in addresses)
    assert not lab.management.overlaps(lab.training)
    assert lab.head_address not in {host.management for host in lab.hosts}


@pytest.mark.parametrize("count", [0, -1, spec.MAX_HOSTS + 1])
def test_a_count_that_cannot_be(count: int) -> None:
    with pytest.raises(UsageError, match="1 to 256 hosts"):
        LabRequest(count=count)


@pytest.mark.parametrize("name", ["", "-x", "a/b", "..", "A", "a b", "x" * 64])
def test_a_name_that_cannot_be(name: str) -> None:
    with pytest.raises(UsageError, match="is not valid"):
        LabRequest(name=name)


def test_link_names_fit_the_kernel() -> None:
    lab = plan(name="x" * 63, count=spec.MAX_HOSTS)
    batch = network.head_link(lab, 4194304) + "".join(network.host_links(lab, host) for host in lab.hosts)
    words = batch.split()
    names = [word for before, word in itertools.pairwise(words) if before in ("add", "name", "dev", "set")]
    links = [name for name in names if "/" not in name]
    assert links
    assert max(map(len, links)) <= 15


@pytest.mark.parametrize(
    ("taken", "chosen"),
    [
        ([], "10.213.0.0/22"),
        (["192.0.2.2/24", "10.0.0.0/24"], "10.213.0.0/22"),
        (["10.213.0.0/22"], "10.213.4.0/22"),
        (["10.213.3.7"], "10.213.4.0/22"),  # one address is enough, prefix or none
        (["10.213.0.0/22", "10.213.8.1/30"], "10.213.4.0/22"),
        (["10.0.0.0/8"], "172.29.0.0/22"),  # a route to all of 10/8, as a VPN sets
        (["10.0.0.0/8", "172.16.0.0/12"], "198.18.0.0/22"),
    ],
)
def test_the_network_is_one_that_nobody_uses(taken: list[str], chosen: str) -> None:
    assert spec.choose_subnet(taken) == chosen


def test_no_network_left() -> None:
    with pytest.raises(UsageError, match="no free network"):
        spec.choose_subnet(["0.0.0.0/1", "128.0.0.0/1"])


FIRST = spec.UIDS[0]


@pytest.mark.parametrize(
    ("taken", "known", "chosen"),
    [
        ([], [], FIRST),
        ([0, 1000, 2000], [], FIRST),
        ([FIRST, FIRST + 2], [], FIRST + 1),  # other labs
        ([], [FIRST, FIRST + 1], FIRST + 2),  # users of a directory that lists nobody
        ([FIRST + 1], [FIRST, FIRST + 2], FIRST + 3),
    ],
)
def test_the_user_id_is_one_that_nobody_has(taken: list[int], known: list[int], chosen: int) -> None:
    assert spec.choose_uid(taken, known.__contains__) == chosen


@pytest.mark.parametrize(
    ("low", "high", "whose"),
    [
        (0, 60_000, "people's and services': https://systemd.io/UIDS-GIDS/"),
        (60_001, 65_535, "people's (systemd-homed), dynamic users', nobody's: the same"),
        (100_000, 600_100_000, "containers' of users: login.defs(5)"),
        (524_288, 1_879_048_191, "containers' of systemd-nspawn"),
        (200_000, 2_000_200_000, "Active Directory's users, as SSSD gives them: sssd-ldap(5)"),
        (2**31, 2**32 - 1, "programs have trouble with these"),
    ],
)
def test_the_user_id_is_far_away_from_everybodys(low: int, high: int, whose: str) -> None:
    assert not set(spec.UIDS) & {low, high}, whose
    assert spec.UIDS[0] > high or spec.UIDS[-1] < low, whose


def test_no_user_id_is_left() -> None:
    with pytest.raises(MntError, match="are in use"):
        spec.choose_uid([], lambda _: True)


def test_an_id_that_the_machine_knows() -> None:
    """Not by a list of all users: a directory has none."""
    assert system.knows_id(0)
    assert system.knows_id(grp.getgrnam("tty").gr_gid)
    assert not any(system.knows_id(uid) for uid in spec.UIDS[:3])


@pytest.mark.parametrize(
    ("text", "bits"), [("400mbit", 400_000_000), ("1gbit", 10**9), ("64kbit", 64_000), ("7mbit", 7_000_000)]
)
def test_rates(text: str, bits: int) -> None:
    assert spec.parse_rate(text) == bits


@pytest.mark.parametrize(
    "text", ["", "400", "0mbit", "-1mbit", "400mbps", "1.5gbit", "400 mbit", "mbit", "1gbit;x"]
)
def test_a_rate_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="is not a rate"):
        spec.parse_rate(text)


@pytest.mark.parametrize(
    "text", ["", "eth0,", "a/b", "eth 0", "lo", "mgmt0", "x" * 16, "-eth0", "eth0\n", ".."]
)
def test_a_nic_name_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError, match="--nics"):
        spec.parse_nics(text)


def test_nic_names() -> None:
    assert spec.parse_nics("eth0,bond0.2973,enp26s0np0") == ("eth0", "bond0.2973", "enp26s0np0")


def test_a_slow_link_still_passes_whole_offloaded_frames() -> None:
    """tbf cuts frames larger than its burst; offloading makes frames of up to 64 KiB."""
    host = plan().hosts[0]
    burst = network.host_shaping(host, 10**6).split("burst ")[1].split("b ")[0]
    assert int(burst) > 64 * 1024


@pytest.mark.parametrize(("count", "neighbours"), [(16, 0), (64, 63)])
def test_hosts_of_a_large_lab_know_their_neighbours(count: int, neighbours: int) -> None:
    lab = plan(count=count)
    links = [network.host_links(lab, host) for host in lab.hosts]
    assert [batch.count("neigh add") for batch in links] == [neighbours] * count
    own = next(line for line in links[6].splitlines() if "address" in line).split("address ")[1].split()[0]
    for batch in links[:6]:
        assert (f"neigh add {lab.hosts[6].training} lladdr {own} " in batch) == (neighbours > 0)
