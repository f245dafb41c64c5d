"""Reads the output of the ranks of a trial. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

from mnt import typed
from mnt.errors import HostError
from mnt.facts.trial import Measurement, Trial, TrialCulprit
from mnt.remote.common.files import parse_json
from mnt.remote.common.forms import ADDRESS
from mnt.tasks.shape import Address, Count, converted, described, wrong_answer


class Imported(Struct, tag_field="event", tag="imported"):
    """A rank has imported torch."""

    backend: Literal["gloo", "nccl"]
    seconds: Annotated[float, Meta(ge=0, lt=1e6)]


class Measured(Struct, tag_field="event", tag="measured"):
    bytes: Annotated[int, Meta(ge=1, le=2**40)]
    seconds: Annotated[float, Meta(ge=1e-9, lt=1e6)]


class Sockets(Struct, tag_field="event", tag="sockets"):
    """Pairs (local address, peer's address) of a rank's connections; a listening socket has no peer."""

    connections: list[tuple[Address, Annotated[str, Meta(pattern=rf"\A\Z|{ADDRESS}")]]]


class Wrong(Struct, tag_field="event", tag="wrong"):
    sum: float
    expected: Count


class Done(Struct, tag_field="event", tag="done"):
    """A rank has come to its end."""


Event = Imported | Measured | Sockets | Wrong | Done

_NCCL = "NCCL INFO "
_NCCL_CHARACTERS = 1024  # of a line of NCCL; the longest seen has 200
_MOST_CHARACTERS = 1 << 18  # of a host's output

# The network that NCCL chooses, as printed with NCCL_DEBUG=INFO: seen in NCCL 2.28.9.
_CHOICE = re.compile(r"(NET/\w+ ?: Using \[\d.*|Using network .*)$")
# A connection over RoCE: the device, by its number in `Using`, and the GID. From NCCL's source: old versions
# print `Dev`, current ones `IbDev`.
_GID = re.compile(r"NET/IB ?: .*\b(?:Ib)?Dev ([0-9]{1,9}) Port \d+ qpn \d+ .*\bGID ([0-9]{1,9}) ")


def read_trial(
    hosts: tuple[str, ...], output: Mapping[str, str], prefix: str, failed: TrialCulprit | None, world: int
) -> Trial:
    """The trial, from the output of each host.

    Args:
        prefix: precedes each JSON object of allreduce.py in a line.
        failed: the culprit, if the job failed.
        world: number of ranks that were started.
    """
    backend: str | None = None
    imports: dict[str, float] = {}
    measured: list[Measurement] = []
    wrong: dict[str, str] = {}
    sockets: dict[str, set[tuple[str, str]]] = {}
    ended = False
    for host, event in [(name, event) for name in output for event in _events(name, output[name], prefix)]:
        if isinstance(event, HostError):
            failed = failed or TrialCulprit(host, event.reason)
        elif isinstance(event, Imported):
            backend = event.backend
            imports[host] = max(event.seconds, imports.get(host, 0.0))
        elif isinstance(event, Measured):
            bandwidth = event.bytes / event.seconds * 2 * (world - 1) / world / 1e9
            measured.append(Measurement(event.bytes, event.seconds, bandwidth))
        elif isinstance(event, Sockets):
            sockets.setdefault(host, set()).update(event.connections)
        elif isinstance(event, Wrong):
            wrong.setdefault(host, f"{event.sum:g} instead of {event.expected}")
        else:
            ended = True
    if failed is None and not ended:
        failed = TrialCulprit(hosts[0], "it ended without a result")
    return Trial(
        hosts=hosts,
        culprit=failed,
        backend=backend,
        world_size=world,
        import_seconds=imports,
        measurements=tuple(measured),
        wrong_sums=wrong,
        nccl_lines={host: lines for host in output if (lines := _network(output[host]))},
        gids={host: gids for host in output if (gids := _gids(output[host]))},
        sockets={host: tuple(sorted(pairs)) for host, pairs in sockets.items()},
    )


def _events(host: str, text: str, prefix: str) -> Iterator[Event | HostError]:
    """The events that a host printed; of those that are not valid only the first, as an error."""
    refused = False
    for line in text.splitlines():
        _, found, rest = line.partition(prefix)
        if found:
            try:
                yield _event(host, rest)
            except HostError as error:
                if not refused:
                    yield error
                refused = True


def _event(host: str, text: str) -> Event:
    """Raises HostError."""
    try:
        event: Event = converted(parse_json(text), Event)
        return event
    except typed.Misfit as misfit:
        problem = described(misfit.location, misfit)
    except ValueError as error:
        problem = str(error)
    raise wrong_answer(host, f"its trial printed a line that is not valid: {problem}")


def _of_nccl(text: str) -> Iterator[str]:
    """The lines of NCCL, without what precedes their text."""
    for line in text.splitlines():
        _, found, rest = line.partition(_NCCL)
        if found:
            yield rest[:_NCCL_CHARACTERS]


class Collector:
    """Keeps of a host's output what `read_trial` reads, as it comes in pieces; not more than it can use.

    Args:
        prefix: as for `read_trial`.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._partial = ""
        self._lines: list[str] = []
        self._left = _MOST_CHARACTERS

    def feed(self, text: str) -> None:
        *lines, rest = (self._partial + text).split("\n")
        for line in lines:
            self._take(line)
        self._partial = rest[:_MOST_CHARACTERS]

    @property
    def text(self) -> str:
        return "\n".join([*self._lines, self._partial])

    def _take(self, line: str) -> None:
        if (self._prefix in line or _NCCL in line) and len(line) < self._left:
            self._left -= len(line) + 1
            self._lines.append(line)


def _network(text: str) -> tuple[str, ...]:
    """The lines that show NCCL's choice, each once."""
    found = (_CHOICE.match(line) for line in _of_nccl(text))
    return tuple(dict.fromkeys(match[1].strip() for match in found if match))


def _gids(text: str) -> dict[int, int]:
    """The GID indices of NCCL's connections, by NCCL's number of the device."""
    found = (_GID.match(line) for line in _of_nccl(text))
    return {int(match[1]): int(match[2]) for match in found if match}
