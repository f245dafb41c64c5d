"""Data from outside held against types: what fits, and where what does not fit stands."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from msgspec import Struct

from mnt import typed


class Inner(Struct, forbid_unknown_fields=True):
    number: int = 0
    even: dict[str, int] = {}

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("the number is odd")


class Upper(str):
    def __new__(cls, value: Any) -> Upper:
        if value != value.upper():
            raise ValueError(f"{value} is not upper case")
        return super().__new__(cls, value)


KIND = dict[str, dict[str, list[Inner]]]


def test_what_fits_is_converted() -> None:
    assert typed.convert({"1": 2}, dict[int, float]) == {1: 2.0}
    assert typed.convert(["A"], list[Upper], lambda kind, value: kind(value)) == ["A"]


def test_a_hook_may_refuse() -> None:
    with pytest.raises(typed.Misfit) as caught:
        typed.convert(["A", "b"], list[Upper], lambda kind, value: kind(value))
    assert (caught.value.location, caught.value.problem) == ((1,), "b is not upper case")
    assert caught.value.of_hook


@pytest.mark.parametrize(
    ("value", "location", "problem"),
    [
        (5, (), "Expected `object`, got `int`"),
        ({"a": {}, "b": {"c": {}}}, ("b", "c"), "Expected `array`, got `object`"),
        ({"a": {"x": [{}, {"number": "1"}]}}, ("a", "x", 1, "number"), "Expected `int`, got `str`"),
        ({"a": {"x": [{"odd": 1}]}}, ("a", "x", 0), "Object contains unknown field `odd`"),
        ({"a": {"x": [{"number": 1}]}}, ("a", "x", 0), "the number is odd"),
    ],
)
def test_a_misfit_has_a_place(value: Any, location: typed.Location, problem: str) -> None:
    with pytest.raises(typed.Misfit) as caught:
        typed.convert(value, KIND)
    assert (caught.value.location, caught.value.problem) == (location, problem)
    assert caught.value.of_hook is ("odd" in problem and "field" not in problem)


def test_the_key_among_many_that_is_meant() -> None:
    table = {f"key{number}": {"x": [{}]} for number in range(1000)}
    table["key617"] = table["key900"] = {"x": [{}, {"even": {"good": 1, "bad": None}}]}
    with pytest.raises(typed.Misfit) as caught:
        typed.convert(table, KIND)
    assert caught.value.location == ("key617", "x", 1, "even", "bad")


def test_a_key_may_be_the_misfit() -> None:
    with pytest.raises(typed.Misfit) as caught:
        typed.convert({"a": {"1": 1, "x": 1}}, dict[str, dict[int, int]])
    assert (caught.value.location, caught.value.of_key) == (("a", "x"), True)


def test_places_are_written_with_dots_and_brackets() -> None:
    assert typed.dotted(("storage", 0, "path")) == "storage[0].path"
    assert typed.dotted(()) == ""


FIRST_USES = """
import dataclasses, sys, threading
from mnt import typed

sys.setswitchinterval(1e-6)
OPTIONAL = dataclasses.field(default=None)


def new_type(number):
    fields = [(f"field{index}", "int | None", OPTIONAL) for index in range(30)]
    inner = dataclasses.make_dataclass(f"Inner{number}", fields, namespace={"__module__": "__main__"})
    globals()[inner.__name__] = inner
    outer = [("by_name", f"dict[str, {inner.__name__}] | None", OPTIONAL)]
    return dataclasses.make_dataclass(f"Outer{number}", outer, namespace={"__module__": "__main__"})


def use(kind, together):
    together.wait()
    typed.convert({"by_name": {"a": {"field1": 1}}}, kind)


for number in range(30):
    kind, together = new_type(number), threading.Barrier(8)
    threads = [threading.Thread(target=use, args=(kind, together)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_use_a_type_for_the_first_time_together() -> None:
    """msgspec alone crashes here, and each host's answer is read in a thread of its own."""
    subprocess.run([sys.executable, "-c", FIRST_USES], check=True)
