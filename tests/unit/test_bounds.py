"""What a text costs to parse, and which programs have bounds."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from liars import SHAPES

import mnt
from mnt.remote.job.logs import LOG_JSON
from mnt.remote.job.logs import parts as parts_of_log
from mnt.tasks.bounds import _BOUNDS, DEPTH, MOST, Bound, bound_of, problem_of

GENEROUS = Bound(MOST.size, 1 << 30)


def estimate(text: str) -> int:
    problem = problem_of(text.encode(), Bound(MOST.size, 0)) or ""
    found = re.fullmatch(r"too many values: (\d+) bytes of memory, more than 0", problem)
    assert found, problem
    return int(found[1])


def memory_of(text: str) -> int:
    """Bytes that the parsed text takes."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        value = json.loads(text)
        after, _ = tracemalloc.get_traced_memory()
        del value
        return after - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [3_000, 30_000])
def test_the_memory_is_never_more_than_estimated(shape: str, count: int) -> None:
    text = SHAPES[shape](count)
    assert memory_of(text) <= estimate(text)


TEXTS = st.text(max_size=8) | st.text('":\\,[]{}u0a ', max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**38), 10**38) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(TEXTS, inner, max_size=8),
    max_leaves=40,
)


@settings(deadline=None, max_examples=200)
@given(value=VALUES, ascii=st.booleans(), space=st.sampled_from([None, 1]))
def test_the_memory_of_any_text_is_never_more_than_estimated(
    value: Any, ascii: bool, space: int | None
) -> None:
    """Many copies, so that what Python needs once does not count."""
    text = json.dumps([value] * 50, ensure_ascii=ascii, indent=space)
    assert memory_of(text) <= estimate(text) + 2000


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("[", "]"),
        ('{"a":', "}"),
        ('{"[": ', "}"),
        ('{"\\\\":', "}"),
        ('{"\\"]":', "}"),
        ('["\\\\\\"]]", ', "]"),
    ],
)
def test_depth(opening: str, closing: str) -> None:
    for levels, problem in ((DEPTH, None), (DEPTH + 1, "nested too deeply")):
        text = opening * levels + "0" + closing * levels
        assert json.loads(text)
        assert problem_of(text.encode(), GENEROUS) == problem
        assert problem_of(b"[" + b"{}," * 9000 + text.encode() + b"]", GENEROUS) == "nested too deeply"


def test_brackets_in_texts_are_no_depth() -> None:
    assert problem_of(json.dumps({"a": "[{" * 1000, "\\": ['"[' * 100]}).encode(), GENEROUS) is None


@settings(deadline=None)
@given(data=st.binary(max_size=200) | st.text('[]{}",:\\u0123x ', max_size=60).map(str.encode))
def test_any_bytes_are_measured(data: bytes) -> None:
    assert problem_of(data, GENEROUS) in (None, "nested too deeply")


def test_every_program_that_the_head_starts_has_a_bound() -> None:
    started = set()
    for file in Path(mnt.__file__).parent.rglob("*.py"):
        started |= set(re.findall(r'(?:run_program|held)\(\s*\w+,\s*"([\w.]+)"', file.read_text()))
    assert started == set(_BOUNDS)
    assert all(bound.size <= MOST.size == 1 << 20 for bound in _BOUNDS.values())


def test_what_a_call_asks_for_moves_its_bound_up_to_the_largest() -> None:
    assert bound_of("net.reach", 1024).size == bound_of("net.reach").size + 1024
    assert bound_of("net.reach", 1 << 40) == MOST
    assert bound_of("no.program") == MOST


@pytest.mark.parametrize(
    "text", ["a" * 300_000, "\x00" * 262_144, "\udcff" * 262_144, "\U0001f600" * 65_536, "é€" * 50_000]
)
def test_a_log_of_any_bytes_comes_in_frames_that_fit(text: str) -> None:
    end = 10 + len(text.encode("utf-8", "surrogateescape"))
    parts = list(parts_of_log(text, end))
    assert "".join(part for part, _ in parts) == text
    assert parts[-1][1] == end
    position = 10
    for part, offset in parts:
        position += len(part.encode("utf-8", "surrogateescape"))
        assert offset == position
        frame = json.dumps({"data": part, "offset": offset, "stream": "output"}).encode()
        assert len(frame) <= bound_of("job.jobctl").size
        assert problem_of(frame, bound_of("job.jobctl")) is None
    assert bound_of("job.jobctl").size > LOG_JSON
