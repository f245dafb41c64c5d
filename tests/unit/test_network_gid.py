"""The GID rule, and NCCL's own, which decides whether a range will do."""

from __future__ import annotations

import pytest
from network_facts import V1, V2, gid, table

from mnt.facts.rdma import Gid
from mnt.network.gid import EVERYWHERE, address_range, candidates, index_nccl_takes

TWO = table("eth0", "192.168.7.7", "10.0.0.1")  # indices 3 and 5 are of RoCE v2


@pytest.mark.parametrize(
    ("gids", "expected"),
    [
        ([gid(3, "10.0.0.1", "eth0")], [3]),
        ([gid(10, "10.0.0.1", "eth0"), gid(9, "10.0.0.1", "eth0")], [9, 10]),
        ([gid(3, "10.0.0.1", "eth0", V1)], []),
        ([gid(3, "10.0.0.1", "eth0", None)], []),
        ([gid(3, "10.0.0.1", "eth1")], []),
        ([gid(3, "10.0.0.1", None)], []),
        ([gid(3, "10.0.0.10", "eth0")], []),
        ([gid(3, "fe80::1", "eth0"), gid(4, "2001:db8::1", "eth0")], []),
        ([Gid(3, "garbage", V2, "eth0")], []),
        ([], []),
    ],
)
def test_what_names_an_address(gids: list[Gid], expected: list[int]) -> None:
    assert [found.index for found in candidates(gids, {"eth0": ["10.0.0.1"]})] == expected


@pytest.mark.parametrize(
    ("gids", "within", "expected"),
    [
        ([], EVERYWHERE, 0),
        (table("eth0", "10.0.0.1"), EVERYWHERE, 3),
        (table("eth0", "10.0.0.1", first=7), EVERYWHERE, 10),
        (TWO, EVERYWHERE, 3),
        (TWO, "10.0.0.0/24", 5),
        (TWO, "172.16.0.0/12", 0),  # nothing inside: 0, without a word
        (table("eth0"), EVERYWHERE, 0),
        ([gid(0, "192.168.7.7", "eth0"), gid(1, "10.0.0.1", "eth0")], "10.0.0.0/24", 0),
        ([gid(2, "10.0.0.1", "eth0", V1)], EVERYWHERE, 2),
    ],
)
def test_what_nccl_takes_by_itself(gids: list[Gid], within: str, expected: int) -> None:
    assert index_nccl_takes(gids, within) == expected


@pytest.mark.parametrize(
    ("wanted", "preferred", "expected"),
    [
        ([(TWO, TWO[5])], ["10.0.0.0/16"], "10.0.0.0/16"),
        ([(TWO, TWO[5])], ["172.16.0.0/12"], "10.0.0.1/32"),
        ([(TWO, TWO[3])], [], "192.168.7.7/32"),
        # Two rails far apart: half of all addresses, but NCCL finds both with it.
        (
            [
                (table("a", "10.1.0.1"), gid(3, "10.1.0.1", "a")),
                (table("b", "10.2.0.1"), gid(3, "10.2.0.1", "b")),
            ],
            ["10.1.0.0/24"],
            "10.0.0.0/14",
        ),
        ([(table("a", "10.1.0.1"), gid(3, "10.1.0.1", "a")), (TWO, TWO[5])], [], "10.0.0.0/15"),
        # The wanted GIDs lie on both sides of 128.0.0.0: no network but all addresses holds them.
        (
            [
                (table("a", "10.1.0.1"), gid(3, "10.1.0.1", "a")),
                (table("b", "192.168.0.1"), gid(3, "192.168.0.1", "b")),
            ],
            [],
            EVERYWHERE,
        ),
        # Slot 0 holds an IPv4 of version 2 already: NCCL never leaves it.
        ([([gid(0, "192.168.7.7", "a"), gid(1, "10.0.0.1", "a")], gid(1, "10.0.0.1", "a"))], [], None),
    ],
)
def test_the_range_that_makes_nccl_find_what_is_wanted(
    wanted: list[tuple[list[Gid], Gid]], preferred: list[str], expected: str | None
) -> None:
    assert address_range(wanted, preferred) == expected


def test_a_gid_in_words() -> None:
    assert str(gid(3, "10.0.0.1", "eth0")) == "3: 10.0.0.1 RoCE v2 eth0"
    assert str(gid(0, "fe80::1", None, None)) == "0: fe80::1 of unknown type without netdev"
