"""What the fuzzers have in common: seeded mutations of real answers, and cases that can be replayed.

MNT_FUZZ=50000 pytest tests/unit -k fuzz              # so many cases for each target
MNT_FUZZ_CASE=1234 pytest tests/unit -k fuzz_facts    # only this case, whose number a failure names
"""

from __future__ import annotations

import copy
import json
import math
import os
import random
import resource
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mnt.remote.common.files import parse_json
from mnt.tasks.bootstrap import BadFrame

SAMPLE = 100  # cases of a target in the suite
_HANG = 60  # seconds that a case may take on a busy machine
_MEMORY = 300 * 2**20  # bytes that all cases of a target may take

_DEEP: Any = []
for _ in range(60):
    _DEEP = [_DEEP]

ADDRESSES = (
    *("10.0.0.1", "10.0.0.999/24", "10.0.0.1/99", "10.0.0.1/0", "10.0.0.1/0.0.0.255", "1.2.3.4/24\n"),
    *("::1", "::/0", "fe80::1%eth0/64", "fe80::1%a b", "fe80::1%a b/64", "fe80::1%", "fe80::1% "),
)
TEXTS = (
    *(
        "",
        " ",
        "NaN",
        "nan",
        "inf",
        "-1",
        "0",
        "1e999",
        "0x" + "f" * 300,
        "null",
        "true",
        "9" * 5000,
        "²",
        "٣",
    ),
    *(
        "\0",
        "\n",
        "a\nnode1 | forged",
        "\x1b]52;c;aGk=\x07",
        "\x1b[2J",
        "\r",
        "\t",
        "\x85",
        "\u2028",
        "\u202e",
    ),
    *("\ud800", "x\udfffy", "\udc80", "caf\udce9", "é", "日本", "\U0001f4a9", "a\u0301" * 20),
    *("../../etc", "/", "~", "-rf", "--help", "$(x)", "`x`", "%s%n{0}", "{{7*7}}", "<script>", "]]>", "&lt;"),
    *ADDRESSES,
    *(
        "node1",
        "node[1-4]",
        "node" + "9" * 240,
        "a,b",
        "@all",
        "a:1",
        "x" * 70000,
        "1." * 3000,
        "=^,",
        "eth0 ",
    ),
    *("running", "finished", "exploded", "ok", "local", "slurm", "rdma", "InfiniBand", "ACTIVE", "RoCE v2"),
)
NUMBERS = (
    *(
        0,
        1,
        -1,
        2,
        255,
        256,
        65535,
        65536,
        2**22 + 1,
        2**31,
        2**53 + 1,
        2**63,
        2**64,
        10**39,
        -(10**39),
        10**100,
    ),
    *(
        0.5,
        -0.0,
        1e-300,
        1e18,
        -1e18,
        1e300,
        -1e300,
        math.nan,
        math.inf,
        -math.inf,
        253402214400,
        -62135596801.0,
    ),
)
ODD: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], [{}], {"": ""}, {"\ud800": 1}, {"x": None}, [None] * 300, _DEEP),
    *(
        {"refused": {}},
        {"host": "node1"},
        [["a", "b", "c"]],
        {"1": 2},
        ["\ud800"],
        {str(i): i for i in range(300)},
    ),
)


def mutated(rng: random.Random, document: Any) -> Any:
    """A copy of a document of plain values, wrong in one place or in a few."""
    root = [copy.deepcopy(document)]
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        holder, key = _place(rng, root)
        if rng.random() < 0.15:
            other, name = _place(rng, root)  # one value stands where another should
            holder[key] = copy.deepcopy(other[name])
        else:
            holder[key] = copy.deepcopy(_wrong(rng, holder[key]))
    return root[0]


def _place(rng: random.Random, root: list[Any]) -> tuple[Any, Any]:
    """(container, key or index) of a value in a document."""
    holder: Any = root
    key: Any = 0
    while (
        isinstance(holder[key], (dict, list))
        and holder[key]
        and rng.random() < (0.98 if holder is root else 0.85)
    ):
        holder = holder[key]
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    return holder, key


def _wrong(rng: random.Random, value: Any) -> Any:
    if rng.random() < 0.2:
        return copy.deepcopy(rng.choice(rng.choice((TEXTS, NUMBERS, ODD))))
    if isinstance(value, str):
        cut = rng.randint(0, len(value))
        return rng.choice(
            (value[:cut], value[:cut] + rng.choice(TEXTS) + value[cut:], value * 2, rng.choice(TEXTS))
        )
    if isinstance(value, (bool, int, float)):
        return rng.choice((*NUMBERS, str(value), not value, [value], -value, value + 1))
    if isinstance(value, list):
        more = [*value, rng.choice(rng.choice((TEXTS, NUMBERS, ODD)))]
        return rng.choice(
            (
                value[1:],
                value[::-1],
                value * 2,
                (_flat(value) * 300)[:300],
                [value],
                more,
                dict(enumerate(value)),
            )
        )
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        less = {name: each for name, each in value.items() if name != key}
        renamed = {**less, rng.choice(TEXTS): value[key]}
        return rng.choice(
            (less, less, renamed, {**value, rng.choice(TEXTS): value[key]}, list(value), [value])
        )
    return rng.choice(rng.choice((TEXTS, NUMBERS, ODD)))


def _flat(items: list[Any]) -> list[Any]:
    """The items without containers, which would multiply when a list that has them is repeated again."""
    return [item for item in items if not isinstance(item, (list, dict))]


def sent(document: Any) -> Any:
    """A document as it arrives at the head in a frame. Raises BadFrame."""
    try:
        return parse_json(json.dumps(document))
    except ValueError as error:
        raise BadFrame(str(error)) from None


def run_cases(
    target: str,
    test: Callable[[random.Random], object],
    *,
    allowed: type[Exception] | tuple[type[Exception], ...] = (),
    sample: int = SAMPLE,
) -> None:
    """Run a test with the generator of each case, which may end with an `allowed` error only.

    A failure names its case; a case that hangs, and cases that fill the memory, are failures too.
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    previous = signal.signal(signal.SIGALRM, _late)
    try:
        for number in _numbers(sample):
            signal.alarm(_HANG)
            try:
                test(random.Random(f"{target} {number}"))
            except allowed:
                continue
            except BaseException as error:
                what = f"{type(error).__name__}: {error}"[:500]
                replay = f"MNT_FUZZ_CASE={number} pytest tests/unit -k {target}"
                raise AssertionError(f"{target}, case {number}: {what}; replay: {replay}") from error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < _MEMORY, f"{target}: {grown >> 20} MiB"


def _numbers(sample: int) -> Iterator[int]:
    if "MNT_FUZZ_CASE" in os.environ:
        yield int(os.environ["MNT_FUZZ_CASE"])
    else:
        yield from range(int(os.environ.get("MNT_FUZZ", sample)))


def _late(signum: int, frame: object) -> None:
    pytest.fail(f"it takes longer than {_HANG} s")
