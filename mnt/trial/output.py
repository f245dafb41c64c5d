"""Reads the output of the ranks of a trial. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
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
# What is kept of a host.
_MOST_BYTES = 1 << 17  # of its output
_MOST_PARTIAL = 1 << 15  # characters of a line that has not ended; the longest is that of a rank's sockets
_LINE = 40  # bytes that a line takes besides its text
_MOST_NETWORKS = 32  # lines about NCCL's choice
_MOST_SOCKETS = 512  # pairs
_MOST_MEASURED = 64  # sizes

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
    backends: dict[str, str] = {}
    imports: dict[str, float] = {}
    measured: list[Measurement] = []
    wrong: dict[str, str] = {}
    sockets: dict[str, set[tuple[str, str]]] = {}
    ended = False
    networks: dict[str, tuple[str, ...]] = {}
    gids: dict[str, dict[int, int]] = {}
    for host, text in output.items():
        networks[host], gids[host] = _network(text), _gids(text)
    for host, event in ((name, event) for name in output for event in _events(name, output[name], prefix)):
        if isinstance(event, HostError):
            failed = failed or TrialCulprit(host, event.reason)
        elif isinstance(event, Imported):
            backends[host] = event.backend
            imports[host] = max(event.seconds, imports.get(host, 0.0))
        elif isinstance(event, Measured):
            if host != hosts[0] or len(measured) == _MOST_MEASURED:  # only rank 0 measures
                continue
            bandwidth = event.bytes / event.seconds * 2 * (world - 1) / world / 1e9
            measured.append(Measurement(event.bytes, event.seconds, bandwidth))
        elif isinstance(event, Sockets):
            pairs = sockets.setdefault(host, set())
            pairs.update(event.connections[: _MOST_SOCKETS - len(pairs)])
        elif isinstance(event, Wrong):
            wrong.setdefault(host, f"{event.sum:g} instead of {event.expected}")
        else:
            ended = ended or host == hosts[0]
    if failed is None and not ended:
        failed = TrialCulprit(hosts[0], "it ended without a result")
    return Trial(
        hosts=hosts,
        culprit=failed,
        backends=backends,
        world_size=world,
        import_seconds=imports,
        measurements=tuple(measured),
        wrong_sums=wrong,
        nccl_lines={host: lines for host, lines in networks.items() if lines},
        gids={host: found for host, found in gids.items() if found},
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


class Collected(Mapping[str, str]):
    """What `read_trial` can use of each host's output, which comes in pieces.

    It is kept as bytes, and only what is read of it becomes a text: of many hosts one after the other.

    Args:
        prefix: as for `read_trial`.
    """

    def __init__(self, hosts: Iterable[str], prefix: str) -> None:
        self._kept = {host: _Kept(prefix) for host in hosts}

    def feed(self, host: str, text: str) -> None:
        self._kept[host].feed(text)

    def __getitem__(self, host: str) -> str:
        return self._kept[host].text

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


class _Kept:
    """The useful lines of one host."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._partial = ""
        self._lines: list[bytes] = []
        self._left = _MOST_BYTES

    def feed(self, text: str) -> None:
        *lines, rest = (self._partial + text).split("\n")
        for line in lines:
            self._take(line)
        self._partial = rest[:_MOST_PARTIAL]

    @property
    def text(self) -> str:
        return b"\n".join([*self._lines, _encoded(self._partial)]).decode("utf-8", "surrogatepass")

    def _take(self, line: str) -> None:
        useful = self._prefix in line or any(
            _CHOICE.match(each) or _GID.match(each) for each in _of_nccl(line)
        )
        if useful and len(data := _encoded(line)) < self._left:
            self._left -= len(data) + _LINE
            self._lines.append(data)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _network(text: str) -> tuple[str, ...]:
    """The lines that show NCCL's choice, each once."""
    found = (_CHOICE.match(line) for line in _of_nccl(text))
    return tuple(islice(dict.fromkeys(match[1].strip() for match in found if match), _MOST_NETWORKS))


def _gids(text: str) -> dict[int, int]:
    """The GID indices of NCCL's connections, by NCCL's number of the device."""
    found = (_GID.match(line) for line in _of_nccl(text))
    return {int(match[1]): int(match[2]) for match in found if match}
