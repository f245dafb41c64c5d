"""What came of a trial run, `mnt preflight --deep`. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# What NCCL says of the network that it takes, with NCCL_DEBUG=INFO: seen in NCCL 2.28.9.
_CHOICE = re.compile(r"NCCL INFO (NET/\w+ ?: Using \[\d.*|Using network .*)$")


@dataclass(frozen=True)
class Measured:
    """An all-reduce of one size, the median of several."""

    bytes: int
    seconds: float
    bandwidth: float  # GB/s on the bus: bytes/seconds x 2(n-1)/n, as nccl-tests counts it


@dataclass(frozen=True)
class Failed:
    """Who ended the trial, and why."""

    host: str
    message: str


@dataclass(frozen=True)
class Trial:
    """All-reduces of ones on `hosts`, over the training NICs.

    `untried` says why there was no launch at all, `failed` who ended it. Both None: it came to its end.
    """

    hosts: tuple[str, ...]
    untried: str | None = None
    failed: Failed | None = None
    without_torch: tuple[str, ...] = ()  # by their packages: nothing was launched then
    backend: str | None = None  # nccl or gloo
    world: int = 0  # ranks
    imports: Mapping[str, float] = field(default_factory=dict)  # host -> seconds, the slowest of its ranks
    measured: tuple[Measured, ...] = ()
    wrong: Mapping[str, str] = field(default_factory=dict)  # host -> what it got for a sum
    network: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # host -> what NCCL took, as it says

    @property
    def done(self) -> bool:
        return self.untried is None and self.failed is None and not self.without_torch

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "ok": self.done and not self.wrong,
            "backend": self.backend,
            "world_size": self.world,
            "import_seconds": dict(self.imports),
            "all_reduce": [
                {"bytes": each.bytes, "seconds": each.seconds, "gigabytes_per_second": each.bandwidth}
                for each in self.measured
            ],
            "nccl": {host: list(said) for host, said in self.network.items()},
        }


def read_trial(
    hosts: tuple[str, ...], output: Mapping[str, str], mark: str, failed: Failed | None, world: int
) -> Trial:
    """The trial, from what each host printed.

    Args:
        mark: what precedes each JSON object of allreduce.py's in a line.
        failed: the culprit, if the job failed.
        world: ranks that were started.
    """
    backend: str | None = None
    imports: dict[str, float] = {}
    measured: list[Measured] = []
    wrong: dict[str, str] = {}
    ended = False
    for host, event in [(name, event) for name in output for event in _events(output[name], mark)]:
        if event["event"] == "imported":
            backend = event["backend"]
            imports[host] = max(event["seconds"], imports.get(host, 0.0))
        elif event["event"] == "measured":
            bandwidth = event["bytes"] / event["seconds"] * 2 * (world - 1) / world / 1e9
            measured.append(Measured(event["bytes"], event["seconds"], bandwidth))
        elif event["event"] == "wrong":
            wrong.setdefault(host, f"{event['sum']:g} instead of {event['expected']}")
        else:
            ended = True
    if failed is None and not ended:
        failed = Failed(hosts[0], "it ended without a result")
    return Trial(
        hosts=hosts,
        failed=failed,
        backend=backend,
        world=world,
        imports=imports,
        measured=tuple(measured),
        wrong=wrong,
        network={host: said for host in output if (said := _network(output[host]))},
    )


def _events(text: str, mark: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        _, found, rest = line.partition(mark)
        if found:
            yield json.loads(rest)


def _network(text: str) -> tuple[str, ...]:
    """What NCCL took, each line once."""
    found = (_CHOICE.search(line) for line in text.splitlines())
    return tuple(dict.fromkeys(match[1].strip() for match in found if match))
