"""Reads the output of the ranks of a trial. Pure."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mnt.facts.trial import Measurement, Trial, TrialCulprit
from mnt.remote.common.files import parse_json

_LONGEST_LINE = 2000  # characters

# The network that NCCL chooses, as printed with NCCL_DEBUG=INFO: seen in NCCL 2.28.9.
_CHOICE = re.compile(r"NCCL INFO (NET/\w+ ?: Using \[\d.*|Using network .*)$")
# A connection over RoCE: the device, by its number in `Using`, and the GID. From NCCL's source: old versions
# print `Dev`, current ones `IbDev`.
_GID = re.compile(r"NCCL INFO NET/IB ?: .*\b(?:Ib)?Dev ([0-9]{1,9}) Port \d+ qpn \d+ .*\bGID ([0-9]{1,9}) ")


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
    for host, event in [(name, event) for name in output for event in _events(output[name], prefix)]:
        if event["event"] == "imported":
            backend = event["backend"]
            imports[host] = max(event["seconds"], imports.get(host, 0.0))
        elif event["event"] == "measured":
            bandwidth = event["bytes"] / event["seconds"] * 2 * (world - 1) / world / 1e9
            measured.append(Measurement(event["bytes"], event["seconds"], bandwidth))
        elif event["event"] == "sockets":
            sockets.setdefault(host, set()).update((local, peer) for local, peer in event["connections"])
        elif event["event"] == "wrong":
            wrong.setdefault(host, f"{event['sum']:g} instead of {event['expected']}")
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


def _events(text: str, prefix: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        _, found, rest = line.partition(prefix)
        if found:
            with contextlib.suppress(ValueError):  # another output of the job came in between
                event = parse_json(rest)
                if isinstance(event, dict):
                    yield event


def _lines(text: str) -> list[str]:
    """Lines that can be NCCL's: the expressions would take quadratic time for much longer ones."""
    return [line for line in text.splitlines() if len(line) < _LONGEST_LINE]


def _network(text: str) -> tuple[str, ...]:
    """The lines that show NCCL's choice, each once."""
    found = (_CHOICE.search(line) for line in _lines(text))
    return tuple(dict.fromkeys(match[1].strip() for match in found if match))


def _gids(text: str) -> dict[int, int]:
    """The GID indices of NCCL's connections, by NCCL's number of the device."""
    found = (_GID.search(line) for line in _lines(text))
    return {int(match[1]): int(match[2]) for match in found if match}
