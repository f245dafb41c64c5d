"""Answers of hosts have the shape that their TypedDicts say."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnt.errors import HostError
from mnt.inventory.values import is_host_name
from mnt.remote.common.refusal import Refused
from mnt.remote.job.files import JobPaths
from mnt.tasks.job import JobEntry, Jobs, Started, Stopped
from mnt.tasks.shape import Address, HostName, JobName, granted, shaped


class Inner(TypedDict):
    name: str


class Optional(TypedDict, total=False):
    extra: int


class Outer(Optional):
    count: int
    share: float
    sure: bool
    inner: Inner | None
    items: list[Inner]
    table: dict[str, list[int]]
    rest: dict[str, Any]


GOOD = {
    "count": 1,
    "share": 1,
    "sure": True,
    "inner": None,
    "items": [{"name": "a", "more": 1}],
    "table": {"x": [1, 2]},
    "rest": {"y": object()},
    "unknown": 0,
}


def test_what_fits() -> None:
    known = {key: value for key, value in GOOD.items() if key != "unknown"}
    assert shaped("node1", GOOD, Outer) == {**known, "items": [{"name": "a"}]}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"count": "1"}, "answer.count: Expected `int`, got `str`"),
        ({"count": True}, "answer.count: Expected `int`, got `bool`"),
        ({"count": 1.0}, "answer.count: Expected `int`, got `float`"),
        ({"share": "much"}, "answer.share: Expected `float`, got `str`"),
        ({"share": False}, "answer.share: Expected `float`, got `bool`"),
        ({"sure": 1}, "answer.sure: Expected `bool`, got `int`"),
        ({"inner": []}, "answer.inner: Expected `object | null`, got `array`"),
        ({"items": {}}, "answer.items: Expected `array`, got `object`"),
        ({"items": [{"name": "a"}, {}]}, "answer.items[1]: Object missing required field `name`"),
        ({"table": {"w": [], "x": [None], "y": []}}, "answer.table.x[0]: Expected `int`, got `null`"),
        ({"table": {"w": 0, "x": [None]}}, "answer.table.w: Expected `array`, got `int`"),
        ({"extra": None}, "answer.extra: Expected `int`, got `null`"),
        ({"\ud800": 0}, "answer: a key is no Unicode text"),
    ],
)
def test_what_does_not(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(HostError) as refusal:
        shaped("node1", {**GOOD, **change}, Outer)
    assert refusal.value.message == f"node1: answer: {problem}"


def test_a_refusal() -> None:
    assert granted("node1", {"refused": None, "x": 1}) == {"refused": None, "x": 1}
    with pytest.raises(HostError, match="node1: command: no place") as refusal:
        granted("node1", {"refused": {"message": "no place", "fix": "make some"}})
    assert refusal.value.fix == "make some"


@pytest.mark.parametrize("lie", [1, "no", [], {}, {"message": 1, "fix": None}, {"message": "x", "fix": []}])
def test_a_refusal_that_is_none(lie: Any) -> None:
    with pytest.raises(HostError, match="node1: answer: refused"):
        granted("node1", {"refused": lie})


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*Jobs.__annotations__, "x"]), inner),
    max_leaves=20,
)


@given(value=anything, shape=st.sampled_from([Outer, JobEntry, Jobs, Started, Stopped]))
def test_anything_at_all_is_judged(value: Any, shape: type) -> None:
    try:
        problem = None
        assert shaped("node1", value, shape) is value
    except HostError as refusal:
        problem = refusal.message
    assert problem is None or problem.startswith("node1: answer: answer")
    assert problem is not None or isinstance(value, dict)


def accepts(check: Callable[[], object]) -> bool:
    try:
        return check() is not False
    except (HostError, Refused):
        return False


@given(
    st.text(max_size=4) | st.text("a.-_:@%/~0A\n\0é", max_size=300) | st.integers(120, 260).map("a".__mul__)
)
def test_host_and_head_know_the_same_names(name: str) -> None:
    of_host = accepts(lambda: JobPaths("/jobs", "job", name))
    assert of_host == accepts(lambda: shaped("node1", name, HostName)) == is_host_name(name)
    assert accepts(lambda: JobPaths("/jobs", name, "node1")) == accepts(
        lambda: shaped("node1", name, JobName)
    )


class Where(TypedDict):
    addr: Address


def is_address(text: str) -> bool:
    try:
        shaped("node1", {"addr": text}, Where)
    except HostError:
        return False
    return True


GOOD_ADDRESSES = ("10.0.0.1", "::", "::1", "fe80::1%eth0.5", "1:2:3:4:5:6:7:8", "1::8", "::ffff:10.0.0.1")
BAD_ADDRESSES = (
    "",
    "1.2.3.4.5",
    "1.2.3",
    "01.2.3.4",
    "256.1.1.1",
    ":::",
    "1::2::3",
    "1:2:3",
    "12345::",
    "::%",
)
ODD_ADDRESSES = (
    "localhost",
    "1.2.3.4\n",
    "1.2.3.4%eth0",
    "::1%a/b",
    "::1%" + "z" * 65,
    "\u0661.2.3.4",
    "a" * 70_000,
)


@pytest.mark.parametrize("text", GOOD_ADDRESSES)
def test_addresses(text: str) -> None:
    assert is_address(text)


@pytest.mark.parametrize("text", [*BAD_ADDRESSES, *ODD_ADDRESSES])
def test_what_is_no_address(text: str) -> None:
    assert not is_address(text)


def test_an_address_is_what_ipaddress_takes_for_one() -> None:
    chance = random.Random(1)
    kinds = {True: 0, False: 0}
    for _ in range(3000):
        pieces = [chance.choice(("0", "1", "ff", "12ab", ":", "1.2.3.4", "255")) for _ in range(8)]
        text = chance.choice((":", ".", "")).join(pieces[: chance.randrange(1, 9)])
        try:
            ipaddress.ip_address(text)
            expected = True
        except ValueError:
            expected = False
        assert is_address(text) is expected, text
        kinds[expected] += 1
    assert min(kinds.values()) > 100
