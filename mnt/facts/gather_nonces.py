"""The edge of `storage-visible`: one host writes to the shared storage, and the others look."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mnt.errors import HostError
from mnt.facts.nonces import Nonce, Sighting
from mnt.fleet import Fleet
from mnt.tasks.visible import Written, read_nonce, write_nonce

_DEADLINE = 5.0  # seconds; attribute caches may be that old


@dataclass(frozen=True)
class Exchange:
    """Who writes a file to a path of the storage, and who looks for it there."""

    path: str
    writer: str
    readers: Sequence[str]
    directories: Sequence[str]  # in which of these the writer may write is tried in this order


def gather_nonces(fleet: Fleet, exchanges: Iterable[Exchange]) -> dict[str, Nonce]:
    """What the hosts see of each other's files, by path of the storage."""
    by_writer: dict[str, list[Exchange]] = {}
    for exchange in exchanges:
        by_writer.setdefault(exchange.writer, []).append(exchange)
    found: dict[str, Nonce] = {}
    for writer, theirs in by_writer.items():
        found.update(_exchange(fleet, writer, theirs))
    return found


def _exchange(fleet: Fleet, writer: str, exchanges: Sequence[Exchange]) -> dict[str, Nonce]:
    nonce = secrets.token_hex(16)
    places = {exchange.path: list(exchange.directories) for exchange in exchanges}
    try:
        with write_nonce(fleet.connection(writer), nonce, places, deadline=_DEADLINE) as written:
            seen = _look(fleet, nonce, written, exchanges)
    except HostError as error:
        return {path: Nonce(writer, error=str(error)) for path in places}
    return {path: Nonce(writer, written[path]["error"], seen.get(path, {})) for path in places}


def _look(
    fleet: Fleet, nonce: str, written: Mapping[str, Written], exchanges: Sequence[Exchange]
) -> dict[str, dict[str, Sighting]]:
    """By path and host."""
    tasks: dict[str, dict[str, str]] = {}
    for exchange in exchanges:
        if (file := written[exchange.path]["file"]) is not None:
            for host in exchange.readers:
                tasks.setdefault(host, {})[exchange.path] = file
    look = partial(read_nonce, deadline=_DEADLINE)
    outcomes = fleet.run_each(look, {host: (nonce, files) for host, files in tasks.items()})
    found: dict[str, dict[str, Sighting]] = {}
    for host, outcome in outcomes.items():
        for path in tasks[host]:
            seen = Sighting(**outcome.value[path]) if outcome.value else Sighting(error=str(outcome.error))
            found.setdefault(path, {})[host] = seen
    return found
