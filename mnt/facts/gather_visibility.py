"""The edge of `storage-visible`: one host writes files to the shared storage, and the others read them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mnt.errors import HostError
from mnt.facts.visibility import Visibility
from mnt.fleet import Fleet
from mnt.tasks.visible import Seen, Written, await_files, write_files

_DEADLINE = 5.0  # seconds; the attribute cache of an NFS client can be that old


@dataclass(frozen=True)
class Exchange:
    """The host that writes a file to a storage path, and the hosts that look for it there."""

    path: str
    writer: str
    readers: Sequence[str]
    directories: Sequence[str]  # the writer takes the first of these that it can write to


def gather_visibility(fleet: Fleet, exchanges: Sequence[Exchange]) -> dict[str, Visibility]:
    """Which hosts see the writer's file, by storage path."""
    found: dict[str, Visibility] = {}
    for writer in dict.fromkeys(exchange.writer for exchange in exchanges):
        found.update(_exchange(fleet, writer, [each for each in exchanges if each.writer == writer]))
    return found


def _exchange(fleet: Fleet, writer: str, exchanges: Sequence[Exchange]) -> dict[str, Visibility]:
    content = secrets.token_hex(16)
    places = {exchange.path: list(exchange.directories) for exchange in exchanges}
    try:
        with write_files(fleet.connection(writer), content, places, deadline=_DEADLINE) as written:
            sightings = _read(fleet, content, written, exchanges)
    except HostError as error:
        return {path: Visibility(writer, error=str(error)) for path in places}
    return {path: Visibility(writer, written[path]["error"], sightings.get(path, {})) for path in places}


def _read(
    fleet: Fleet, content: str, written: Mapping[str, Written], exchanges: Sequence[Exchange]
) -> dict[str, dict[str, Seen]]:
    """The sightings, by path and host."""
    tasks: dict[str, dict[str, str]] = {}
    for exchange in exchanges:
        if (file := written[exchange.path]["file"]) is not None:
            for host in exchange.readers:
                tasks.setdefault(host, {})[exchange.path] = file
    read = partial(await_files, deadline=_DEADLINE)
    outcomes = fleet.run_each(read, {host: (content, files) for host, files in tasks.items()})
    found: dict[str, dict[str, Seen]] = {}
    for host, outcome in outcomes.items():
        for path in tasks[host]:
            seen = outcome.value[path] if outcome.value else Seen(delay=None, error=str(outcome.error))
            found.setdefault(path, {})[host] = seen
    return found
