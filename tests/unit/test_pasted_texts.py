"""What `mnt` prints to be pasted: whatever text a host has anywhere in its facts, it stays one word."""

from __future__ import annotations

import copy
import os
import random
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_fuzz_facts import LIAR, NAMES, inventory, made_up, real, rich

from mnt.errors import HostError
from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.network.decision import decide
from mnt.network.overview import network_overview
from mnt.preflight.registry import all_checks
from mnt.preflight.report import run_checks
from mnt.ui.console import one_line

PAYLOAD = "touch PWNED"
EVIL = (
    f"; {PAYLOAD}; #",
    f"\x1b'; {PAYLOAD}; #\x1b'",
    f"\x1b];{PAYLOAD};#",
    f"$({PAYLOAD})",
    f"\x9b'`{PAYLOAD}`",
)
QUOTED = re.compile(r"'[^']*'|\"'\"")


def places(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every text in a document, keys too."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield (*where, key, None)
            yield from places(inside, (*where, key))
    elif isinstance(value, list):
        for index, inside in enumerate(value):
            yield from places(inside, (*where, index))
    elif isinstance(value, str):
        yield where


def poisoned(document: Any, where: tuple[Any, ...], evil: str) -> Any:
    changed = copy.deepcopy(document)
    *above, last = where
    if last is None:
        *above, last = above
    inside = changed
    for step in above:
        inside = inside[step]
    if where[-1] is None:
        inside[f"{last}{evil}"] = inside.pop(last)
    else:
        inside[last] += evil
    return changed


# All at each place: MNT_FUZZ=1 pytest tests/unit/test_pasted_texts.py
@pytest.mark.parametrize("first", range(len(EVIL) if os.environ.get("MNT_FUZZ") else 1))
def test_no_text_of_a_host_is_a_command_of_its_own(first: int) -> None:
    others = {name: rich(number) for number, name in enumerate(NAMES, 1) if name != LIAR}
    fixes: dict[str, str] = {}
    accepted = 0
    for document in (made_up(), real()):
        for number, where in enumerate(places(document)):
            try:
                evil = EVIL[(number + first) % len(EVIL)]
                lie = HostFacts.parse(LIAR, poisoned(document, where, evil))
            except HostError:
                continue
            accepted += 1
            cluster = inventory(random.Random(number))
            fleet = FleetFacts(cluster, cluster.hosts, {**others, LIAR: lie}, {})
            network = decide(fleet)
            for finding in run_checks(fleet, network, all_checks()).findings:
                fixes[one_line(finding.fix or "")] = f"{finding.check}: {where}"
            for node in network_overview(fleet, network).nodes.values():
                for line in node.shell():
                    assert len(shlex.split(one_line(line))) == 2, (line, where)
    assert accepted > 50
    for fix, where in fixes.items():
        if not fix.startswith(f"{LIAR} says: "):
            assert PAYLOAD not in QUOTED.sub("", fix), (fix, where)


@given(st.text(max_size=40))
@example("\x1b]'")
@example("a\x1b'\x1b'; id #")
@example("\x1b[ '")
@example("\x1b[0'm")
def test_a_quoted_word_stays_one_word_when_it_is_printed(text: str) -> None:
    shown = one_line(f"rm -- {shlex.quote(text)} after")
    words = shlex.split(shown)
    assert (len(words), words[0], words[1], words[3]) == (4, "rm", "--", "after")
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", shown)
