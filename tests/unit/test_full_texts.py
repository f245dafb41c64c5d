"""One text of a host's facts is as long as an answer may be: the head takes seconds for any of it."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from test_full_facts import SECONDS
from test_fuzz_facts import LIAR, NAMES, inventory, made_up, rich

from mnt.errors import HostError
from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.network.decision import decide
from mnt.network.overview import network_overview
from mnt.preflight.output.page import as_page
from mnt.preflight.registry import all_checks
from mnt.preflight.report import run_checks
from mnt.preflight.trips import exchanges
from mnt.tasks.bounds import bound_of

pytestmark = pytest.mark.one_python

LONGEST = bound_of("probe.probe").size - 32 * 1024  # bytes; the rest of the answer is smaller
PIECES = ("/a", "1.", "a ", "[", "\n", "mlx5_0:1,", "E", "\u00e9")
MORE: dict[str, Any] = {  # where healthy hosts say nothing
    "paths": {
        "/shared": {"kind": "dir", "real": "/shared", "write": "ENOSPC", "error": "e", "code": "EIO"},
        "/tmp": {"kind": "unreadable", "real": "/tmp", "error": "e"},
        "~": {"kind": "dir", "real": "/shared/x"},
    },
    "writes": [{"path": "/shared/x", "directory": "/shared", "result": "ENOSPC", "mount": "/shared"}],
    "artifacts": {
        "release": {"id": "x"},
        "locks": [{"path": "/x/lock", "age": 9999}],
        "exposed": [{"message": "m", "fix": "f"}],
    },
    "session": {"umask": 0, "path": "/bin", "nofile": 1, "memlock": 1, "scope": "s"},
    "logind": {"booted": True, "settings": {"KillUserProcesses": "yes"}},
    "resolved": {"error": "e"},
}


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a text is; of a list, in its first element."""
    if isinstance(value, str):
        yield at
    elif isinstance(value, (dict, list)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value[:1]):
            yield from places(each, (*at, key))


def changed(document: dict[str, Any], at: tuple[Any, ...], text: str) -> dict[str, Any]:
    copied = place = copy.deepcopy(document)
    for key in at[:-1]:
        place = place[key]
    place[at[-1]] = text
    return copied


@pytest.mark.parametrize("piece", PIECES)
def test_a_long_text(piece: str) -> None:
    document = {**made_up(), **MORE}
    cluster = inventory(random.Random(1))
    taken = 0
    for at in places(document):
        text = piece * (LONGEST // len(json.dumps(piece, ensure_ascii=False).strip('"').encode()))
        try:
            liar = HostFacts.parse(LIAR, changed(document, at, text))
        except HostError:
            continue
        taken += 1
        facts = {name: liar if name == LIAR else rich(number) for number, name in enumerate(NAMES, 1)}
        fleet = FleetFacts(cluster, cluster.hosts, facts)
        started = time.process_time()
        network = decide(fleet)
        list(exchanges(fleet))
        as_page(run_checks(fleet, network, all_checks()), written="now", seconds=1.0)
        network_overview(fleet, network)
        assert time.process_time() - started < SECONDS, at
    assert taken > 20
