"""What a text costs to parse, and which programs have bounds."""

from __future__ import annotations

import io
import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from liars import SHAPES
from liars import frame as send

import mnt
from mnt.remote.job.list import that_fit
from mnt.remote.job.logs import FRAME_BYTES
from mnt.remote.job.logs import parts as parts_of_log
from mnt.remote.probe.probe import main as probe_main
from mnt.tasks.bootstrap import FrameReader
from mnt.tasks.bounds import _BOUNDS, DEPTH, MOST, VALUE, Bound, bound_of, list_share, problem_of

GENEROUS = Bound(MOST.size, 1 << 30)


def estimate(text: str) -> int:
    """What docs and Bound promise: bytes of memory, at most."""
    problem = problem_of(text.encode(), Bound(MOST.size, 0)) or "too many values: 0, more than 0"
    found = re.fullmatch(r"too many values: (\d+), more than 0", problem)
    assert found, problem
    return VALUE * int(found[1]) + 4 * len(text.encode())


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


# What programs print: each alone, and mixed, fills a chunk of a log.
LOG_PIECES = (
    "epoch 3: loss 0.25\n",
    "\U0001f600",
    "\t",
    "\r\n",
    '"',
    "\\",
    "\x00",
    "\x1b[31m",
    "\udcff",
    "é€",
    "\u4e2d\u6587",
    "\u2028",
    "[{,:",
    '{"a":1},',
)


def check_log(text: str) -> None:
    """As mnt/remote/job/logs.py sends the text, and the head takes it."""
    end = 10 + len(text.encode("utf-8", "surrogateescape"))
    parts = list(parts_of_log(text, end))
    assert "".join(part for part, _ in parts) == text
    assert parts[-1][1] == end
    position = 10
    bound = bound_of("job.jobctl")
    reader = FrameReader("mark", bound)
    for part, offset in parts:
        position += len(part.encode("utf-8", "surrogateescape"))
        assert offset == position
        frame = json.dumps({"data": part, "offset": offset, "stream": "output"}).encode()
        assert len(frame) <= bound.size
        sent = b"".join(send(b"mark", "frame", frame))
        assert [read.value["data"] for read in reader.feed(sent)] == [part]


@pytest.mark.parametrize("first", LOG_PIECES)
@pytest.mark.parametrize("second", LOG_PIECES)
def test_a_log_of_any_mixture_comes_in_frames_that_fit(first: str, second: str) -> None:
    piece = first + second * 3
    check_log("\U0001f600" + piece * (FRAME_BYTES // len(piece.encode("utf-8", "surrogateescape"))))


@settings(deadline=None, max_examples=100)
@given(
    pieces=st.lists(
        st.sampled_from(LOG_PIECES) | st.text(max_size=30) | st.binary(max_size=30), min_size=1, max_size=20
    )
)
def test_a_log_of_any_bytes_comes_in_frames_that_fit(pieces: list[str | bytes]) -> None:
    data = b"".join(
        piece if isinstance(piece, bytes) else piece.encode("utf-8", "surrogateescape") for piece in pieces
    )
    data = (data * (FRAME_BYTES // max(1, len(data)) + 1))[:FRAME_BYTES]
    check_log(data.decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("count", [10, 350])
def test_the_facts_of_a_host_with_many_interfaces_fit(count: int) -> None:
    """Those of this machine, with that many interfaces that have long names and several addresses."""
    facts: dict[str, Any] = probe_main({}, lambda frame: None, io.BytesIO())
    interface = next(each for each in facts["interfaces"] if each["name"] == "lo")
    addresses = {
        "ipv4": ["192.0.2.100/24"],
        "ipv6": ["2001:db8:1111:2222:3333:4444:5555:6666/64", "fe80::1/64"],
    }
    facts["interfaces"] += [
        {**interface, **addresses, "name": f"cali0123456789{number}", "altnames": ["enp226s0f0np0"]}
        for number in range(count)
    ]
    check(facts, bound_of("probe.probe"))


def check(answer: object, bound: Bound) -> None:
    data = json.dumps(answer).encode()
    assert len(data) <= bound.size
    assert problem_of(data, bound) is None


@pytest.mark.parametrize("hosts", [1, 2, 40, 85, 256, 2000])
@pytest.mark.parametrize("nodes", [1, 16, 256])
def test_a_list_of_jobs_that_the_host_cuts_by_size_fits(hosts: int, nodes: int) -> None:
    """With the shortest names, so that there are as many values as possible."""
    most = list_share(hosts)
    entry = {
        "job": "a", "host": "a", "node_rank": 0, "engine": None, "release": None, "backend": None,
        "outside_id": None, "master": None, "created": None, "state": "finished", "exit_code": 0,
        "signal": None, "failure": None, "reason": None, "started": 1.0, "ended": 2.0, "listening": False,
        "peer": None,
        "nodes": [{"host": f"{number:x}", "node_rank": number, "nproc": 1} for number in range(nodes)],
    }  # fmt: skip
    listed = that_fit([(entry, True)] * 3000, most, None)
    assert nodes > 1 or len(listed.jobs) >= 200
    check({"now": 1.5, "jobs": listed.jobs, "left_out": listed.left_out}, bound_of("job.list", most))


def test_the_lists_of_jobs_are_bounded_together() -> None:
    """Up to 256 hosts; each of more is not cut further, so that it can list what runs."""
    assert list_share(85) > 200 * 1500  # 200 jobs of 16 nodes
    assert all(hosts * list_share(hosts) <= 32 << 20 for hosts in range(1, 257))
    assert list_share(10_000) == list_share(256) == 128 << 10
    assert bound_of("job.list", list_share(1)).size == MOST.size


def test_a_state_of_a_job_of_a_thousand_nodes_fits() -> None:
    nodes = [{"host": f"node{number}", "node_rank": number, "nproc": 8} for number in range(1000)]
    check({"state": {"job": "a", "nodes": nodes}}, bound_of("job.jobctl"))
