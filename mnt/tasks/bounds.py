"""How much a host may send: the bound of a program's frames. Pure.

The memory of a parsed frame is mostly that of many small values: `[]` has two bytes, and takes 80. So the
values are counted before the text is parsed.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import NamedTuple

from mnt.remote.common.forms import FETCH_PIECE, LOG_JSON

KIB, MIB = 1 << 10, 1 << 20


class Bound(NamedTuple):
    """The largest frame of a program: bytes of JSON, and values as `problem_of` counts them.

    Parsed, it takes at most VALUE * values + 4 * size bytes: a character has at least a byte in JSON, and at
    most 4 in memory.
    """

    size: int
    values: int
    total: int | None = None  # bytes of all frames together; None: they are not kept, or counted elsewhere


VALUE = 88  # bytes of memory on 64 bits, without the characters; tests/unit/test_bounds.py measures it
_SPARSE = 5  # bytes of JSON for each value: no answer of our own programs has fewer

# The largest of all; also of a program that is named by hand.
MOST = Bound(MIB, MIB // _SPARSE)

# Sent by the boot code of every program: the start, and a traceback.
SHORT = Bound(64 * KIB, 1000)

# A release and what uses it; of all releases together, which the head keeps.
RELEASES = Bound(64 * KIB, 1000, total=512 * KIB)

# Up to 256 hosts answer at the same time, and the head keeps their facts: 3 MiB of memory for each host.
_BOUNDS = {
    "probe.probe": Bound(192 * KIB, 16_200),  # an interface has about 300 bytes and 40 values
    "probe.survey": Bound(
        128 * KIB, 8000
    ),  # an environment has about 250 bytes and 15 values; a peer 40 and 2
    "probe.visible": SHORT,
    "net.reach": SHORT,
    "job.list": Bound(16 * KIB, 200),  # without the list
    "job.jobctl": Bound(LOG_JSON + 4 * KIB, 10_000),  # a part of a log; a job's state has 9 values for a node
    "fetch.fetch": Bound(FETCH_PIECE * 4 // 3 + 4 * KIB, 1000),  # a piece of a file; an entry has 9 values
    "push.receive": Bound(256 * KIB, 16_000),  # the names of all releases
    "scheduler.ask": Bound(MIB, 100),  # two texts
    "ssh.authorize": SHORT,
    "ssh.mesh": SHORT,
    "trial.stage": SHORT,
}


def bound_of(name: str, more: int = 0) -> Bound:
    """The bound of a program's frames.

    Args:
        more: bytes that this call allows in addition, for what it asks about.
    """
    bound = _BOUNDS.get(name, MOST)
    size, values = min(bound.size + more, MOST.size), min(bound.values + more // _SPARSE, MOST.values)
    return Bound(size, values, bound.total)


def list_share(hosts: int) -> int:
    """Bytes of JSON for the list of jobs of each of so many hosts: 32 MiB in all for up to 256 hosts."""
    return min(32 * MIB // min(hosts, 256), MOST.size - _BOUNDS["job.list"].size)


DEPTH = 32  # of nested lists and objects; the deepest answer of any program has 6

_BRACKET = re.compile(rb"[\[\]{}]")
_STRING = re.compile(rb'"[^"]*"')


def problem_of(data: bytes, bound: Bound) -> str | None:
    """Why a JSON text may not be parsed; None: it may. Its size is checked elsewhere.

    Each `[`, `,` and `:` begins a value (or a key, or nothing). An object takes more than a list: `{` counts
    as three.
    """
    # Outside strings, valid JSON has no backslash. Where it is not valid, parsing ends, and keeps nothing.
    bare = _STRING.sub(b"", data.replace(b"\\\\", b"").replace(b'\\"', b""))
    depth = 0
    for bracket in islice(_BRACKET.finditer(bare), 2 * bound.values):  # each that opens counts, and is closed
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > DEPTH:
            return "nested too deeply"
    values = sum(map(bare.count, (b"[", b",", b":"))) + 3 * bare.count(b"{")
    return f"too many values: {values}, more than {bound.values}" if values > bound.values else None
