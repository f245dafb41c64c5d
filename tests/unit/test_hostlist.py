"""Hostlists: the user's order is rank order."""

from __future__ import annotations

import random
import time
from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnt.errors import UsageError
from mnt.inventory import hostlist
from mnt.inventory.model import Host, Inventory

KNOWN = ["node1", "node2", "node3", "node4"]
GROUPS = {"train": ("node3", "node1"), "spare": ("node4",)}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[1-4]", ["node1", "node2", "node3", "node4"]),
        ("node[01-03,20]", ["node01", "node02", "node03", "node20"]),
        ("node[9-11]", ["node9", "node10", "node11"]),
        ("n[0-10/5]", ["n0", "n5", "n10"]),
        ("b,a", ["b", "a"]),
        (" b , a ", ["b", "a"]),
        ("node[4,1-2]", ["node4", "node1", "node2"]),
        ("node3,node[1-4]", ["node3", "node1", "node2", "node4"]),
        ("rack[1-2]n[4,1]", ["rack1n4", "rack1n1", "rack2n4", "rack2n1"]),
        ("n[1-2].rack7.lan", ["n1.rack7.lan", "n2.rack7.lan"]),
        ("10.0.0.[1-2]", ["10.0.0.1", "10.0.0.2"]),
        ("[1-2]", ["1", "2"]),
        ("@train", ["node3", "node1"]),
        ("node1,@train,@spare", ["node1", "node3", "node4"]),
    ],
)
def test_expands_in_the_order_written(text: str, hosts: list[str]) -> None:
    assert hostlist.expand(text, groups=GROUPS) == hosts


def test_names_keeps_what_is_named_twice() -> None:
    assert hostlist.names("a,b,a") == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("a,,b", "nothing between two commas"),
        ("a,", "nothing between two commas"),
        ("node[1-3", "not closed"),
        ("node]1[", "do not match"),
        ("n[[1]]", "do not match"),
        ("node[]", "a range is empty"),
        ("node[1,]", "a range is empty"),
        ("node[a-b]", "'a-b' is not a range"),
        ("node[-3]", "'-3' is not a range"),
        ("node[1-2-3]", "'1-2-3' is not a range"),
        ("node[4-1]", "4-1"),
        ("node[1-010]", "different lengths"),
        ("node[1-4/0]", "1-4/0"),
        ("node[1-999999999]", "it names 999999999 hosts"),
        ("n[1-1000]m[1-1000]", "it names 1000000 hosts"),
        ("-oProxyCommand=x", "begins with '-'"),
        ("node1,-x", "begins with '-'"),
        ("root@node1", "the user belongs in ssh"),
        ("node1:22", "belong in address"),
        ("a b", "'a b' is not a host name"),
        ("a\nb", "is not a host name"),
        ("../etc", "is not a host name"),
        ("node1!node2", "is not a host name"),
        ("nodé", "is not a host name"),
        ("@train", "a group cannot be used here"),
    ],
)
def test_says_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        hostlist.expand(text)
    assert problem in caught.value.message
    assert "\n" not in caught.value.message


def test_unknown_hosts_are_folded_and_the_likely_spelling_named() -> None:
    with pytest.raises(UsageError) as caught:
        hostlist.expand("node[3-6]", known=KNOWN)
    assert "node[5-6]" in caught.value.message
    with pytest.raises(UsageError, match=r"no host named nod1 .*did you mean 'node1'\?"):
        hostlist.expand("nod1", known=KNOWN)


def test_an_unknown_group_names_the_likely_one() -> None:
    with pytest.raises(UsageError, match=r"no group named 'trian'; did you mean 'train'\?") as caught:
        hostlist.expand("@trian", groups=GROUPS)
    assert caught.value.fix == "groups known here: train, spare"


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        (["node1", "node2", "node4"], "node[1-2,4]"),
        (["node4", "node1", "node2"], "node4,node[1-2]"),
        (["node2", "node1"], "node2,node1"),
        (["a", "b"], "a,b"),
        (["n09", "n10", "n100"], "n[09-10,100]"),
        (["rack1n1", "rack1n2", "rack2n1", "rack2n2"], "rack[1-2]n[1-2]"),
        (["listserv01", "listserv3"], "listserv01,listserv3"),
        (["n100000000000", "n100000000001"], "n[100000000000-100000000001]"),
        ([], ""),
    ],
)
def test_folds_without_changing_the_order(hosts: list[str], text: str) -> None:
    assert hostlist.fold(hosts) == text


_names = st.from_regex(r"(node|rack|n)(0?[0-9]{1,3})?(-?[a-z](0?[0-9]{1,2})?)?", fullmatch=True)


@given(st.lists(_names, min_size=1, max_size=30))
def test_what_is_folded_expands_to_the_same(hosts: list[str]) -> None:
    assert hostlist.names(hostlist.fold(hosts)) == hosts


@given(st.permutations([f"rack{r}n{n}" for r in (1, 2) for n in (1, 2, 3)]))
def test_any_order_of_a_rack_survives_folding(hosts: list[str]) -> None:
    assert hostlist.names(hostlist.fold(hosts)) == hosts


@pytest.mark.parametrize(
    ("answers", "groups"),
    [
        ({"a": 1}, [("a",)]),
        ({"a": 1, "b": 2, "c": 1}, [("a", "c"), ("b",)]),
        ({"a": 1, "b": 2, "c": 2}, [("a",), ("b", "c")]),
        ({"a": 1, "b": 2}, [("a",), ("b",)]),
        ({"a": (0, b"x"), "b": (1, b"x")}, [("a",), ("b",)]),
    ],
)
def test_groups_hosts_with_equal_answers(answers: dict[str, Hashable], groups: list[tuple[str, ...]]) -> None:
    assert hostlist.group(answers) == groups


@pytest.fixture
def cluster() -> Inventory:
    hosts = tuple(Host(name, name) for name in KNOWN)
    return Inventory(cluster="c", file="c.yaml", hosts=hosts, groups=GROUPS)


@pytest.mark.parametrize(
    ("nodes", "exclude", "chosen"),
    [
        (None, None, KNOWN),
        (None, "node2", ["node1", "node3", "node4"]),
        ("node[3,1]", None, ["node3", "node1"]),
        ("@train", "node1", ["node3"]),
        (None, "@train", ["node2", "node4"]),
    ],
)
def test_selects(cluster: Inventory, nodes: str | None, exclude: str | None, chosen: list[str]) -> None:
    hosts = hostlist.select(cluster, nodes=nodes, exclude=exclude)
    assert [host.name for host in hosts] == chosen


@pytest.mark.parametrize(
    ("nodes", "exclude", "problem"),
    [
        ("", None, "empty"),
        ("node5", None, "no host named node5"),
        (None, "node5", "no host named node5"),
        ("@gone", None, "no group named 'gone'"),
        ("node[1-2]", "node[1-4]", r"no host is left: node\[1-4\] excludes all of node\[1-2\]"),
    ],
)
def test_refuses_to_select(cluster: Inventory, nodes: str | None, exclude: str | None, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        hostlist.select(cluster, nodes=nodes, exclude=exclude)


@pytest.mark.parametrize("numbers", [2, 3, 4, 10, 100])
@pytest.mark.parametrize("first", [300, 9000])
def test_folding_names_that_a_host_chose_ends_soon(numbers: int, first: int) -> None:
    digits = random.Random(1)
    hosts = [
        "x".join([f"n{index % first}", *(str(digits.randrange(10)) for _ in range(numbers - 1))])[:250]
        for index in range(4096)
    ]
    before = time.process_time()
    folded = hostlist.fold(hosts)
    assert time.process_time() - before < 10  # ClusterShell alone takes minutes
    assert hostlist.names(folded) == hosts


def test_an_unknown_host_does_not_print_all_known_ones() -> None:
    """A group of an inventory of 1.4 MiB printed as much, and more."""
    with pytest.raises(UsageError) as caught:
        hostlist.check_known(
            [f"{index}y" for index in range(0, 90_000, 2)], [f"{'x' * (i % 7)}n{i}" for i in range(90_000)]
        )
    assert len(caught.value.message) < 400
    assert len(str(caught.value.fix)) < 400


def test_many_hosts_are_cut_for_people() -> None:
    assert hostlist.brief(["node1", "node2", "node3"]) == "node[1-3]"
    assert hostlist.brief(["b", "a", "node1"], longest=5) == "b,a and 1 more"
    assert hostlist.brief(["a" * 250, "b"]) == "a" * 200 + " and 1 more"
    hosts = [f"{'x' * (index % 7)}n{index}" for index in range(9000)]
    text = hostlist.brief(hosts)
    assert len(text) < 220
    assert text.endswith(" more")
