"""How much a host may send: the bound of a program's frames, and what a frame costs to parse. Pure.

The memory of a parsed frame is mostly that of many small values: `[]` has two bytes, and takes 80. So the
text is measured before it is parsed.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import NamedTuple

KIB, MIB = 1 << 10, 1 << 20


class Bound(NamedTuple):
    """The largest frame of a program, in bytes of JSON and in bytes of memory once it is parsed."""

    size: int
    memory: int


# The largest of all; also of a program that is named by hand.
MOST = Bound(MIB, 16 * MIB)

# Sent by the boot code of every program: the start, and a traceback.
SHORT = Bound(64 * KIB, 512 * KIB)

# Of a list of jobs, if up to 256 hosts are asked.
LIST_BYTES = 128 * KIB

# Up to 256 hosts answer at the same time, and the head keeps their facts.
_BOUNDS = {
    "probe.probe": Bound(256 * KIB, 3 * MIB // 2),
    "probe.visible": SHORT,
    "net.reach": SHORT,
    "job.list": SHORT,
    "job.jobctl": Bound(772 * KIB, 5 * MIB // 4),  # a part of a log: LOG_JSON of mnt/remote/job/logs.py
    "push.receive": Bound(256 * KIB, 2 * MIB),  # the names of all releases
    "ssh.authorize": SHORT,
    "ssh.mesh": SHORT,
    "trial.stage": SHORT,
}


def bound_of(name: str, more: int = 0) -> Bound:
    """The bound of a program's frames.

    Args:
        more: bytes that this call allows in addition, for what it asks about.
    """
    size, memory = _BOUNDS.get(name, MOST)
    return Bound(min(size + more, MOST.size), min(memory + 16 * more, MOST.memory))


DEPTH = 32  # of nested lists and objects; the deepest answer of any program has 6

_BRACKET = re.compile(rb"[\[\]{}]")
_STRING = re.compile(rb'"[^"]*"')
_ESCAPED = re.compile(rb"\\u[0-9a-fA-F]{4}")
_ASTRAL = re.compile(rb"[\xf0-\xff]|\\u[dD][89abAB]")  # not in the Basic Multilingual Plane of Unicode
_KEY_OR_TEXT = re.compile(rb'("[^"]*")[ \t\r\n]*(:?)')

# Bytes of CPython 3.10 to 3.14 on 64 bits, at most: sizes of the objects, the header of the garbage collector
# and the slot that refers to them included.
_OBJECT = 264  # with up to five keys
_LIST = 112  # with up to four values
_KEY_SLOT = 64  # of the third and further keys: the two before are in the difference to an empty object
_TEXT = 88  # without its characters
_NUMBER = 64  # of up to 40 digits
_WORD = 16  # true, false, null


def problem_of(data: bytes, bound: Bound) -> str | None:
    """Why a JSON text may not be parsed; None: it may. Its size is checked elsewhere."""
    # Outside strings, valid JSON has no backslash. Where it is not valid, parsing ends, and keeps nothing.
    text = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    bare = _STRING.sub(b'"', text)
    depth = 0
    for bracket in islice(_BRACKET.finditer(bare), bound.memory // _LIST):  # more of them need more memory
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > DEPTH:
            return "nested too deeply"
    objects, lists, keys = bare.count(b"{"), bare.count(b"["), bare.count(b":")
    texts = bare.count(b'"') - keys
    words = sum(map(bare.count, (b"null", b"true", b"false")))
    numbers = max(0, bare.count(b",") + 1 - texts - words)
    texts += len({found[1] for found in _KEY_OR_TEXT.finditer(text) if found[2]})  # equal keys are one object
    escaped = len(_ESCAPED.findall(text))
    width = 4 if _ASTRAL.search(data) else 2 if escaped or not data.isascii() else 1
    memory = objects * _OBJECT + lists * _LIST + max(0, keys - 2 * objects) * _KEY_SLOT
    memory += texts * _TEXT + numbers * _NUMBER + words * _WORD
    memory += (len(data) - 5 * escaped) * width  # the characters
    if memory > bound.memory:
        return f"too many values: {memory} bytes of memory, more than {bound.memory}"
    return None
