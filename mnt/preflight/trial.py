"""What came of a trial run, `mnt preflight --deep` and `mnt net --deep`. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mnt.inventory.hostlist import fold

# What NCCL says of the network that it takes, with NCCL_DEBUG=INFO: seen in NCCL 2.28.9.
_CHOICE = re.compile(r"NCCL INFO (NET/\w+ ?: Using \[\d.*|Using network .*)$")
# A connection over RoCE: which device, by its number in `Using`, and which GID. As NCCL's source writes it,
# with `Dev` in old versions, `IbDev` in those of today.
_GID = re.compile(r"NCCL INFO NET/IB ?: .*\b(?:Ib)?Dev (\d+) Port \d+ qpn \d+ .*\bGID (\d+) ")


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
    gids: Mapping[str, Mapping[int, int]] = field(default_factory=dict)  # host -> NCCL's device -> GID index
    # host -> (local address, the peer's or, where it listens, nothing) of its ranks' sockets, with gloo
    sockets: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.untried is None and self.failed is None and not self.without_torch

    @property
    def problem(self) -> tuple[str, str] | None:
        """Why it did not come to a good end, in one line, and the way out."""
        if self.without_torch:
            where = f"{fold(self.without_torch)}: torch is not installed for the configured interpreter"
            return where, "install it, or set `python` of these hosts to the interpreter that has it"
        if self.untried is not None:
            return f"not tried: {self.untried}", "mend that first; mnt preflight says more"
        if self.failed is not None:
            first = next(iter(self.failed.message.splitlines()), "")
            return f"{self.failed.host}: the trial failed: {first}", "mnt preflight --deep says more"
        if self.wrong:
            host, what = next(iter(self.wrong.items()))
            return f"{host}: a sum over all ranks is wrong: {what}", "mnt preflight --deep says more"
        return None

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
    sockets: dict[str, set[tuple[str, str]]] = {}
    ended = False
    for host, event in [(name, event) for name in output for event in _events(output[name], mark)]:
        if event["event"] == "imported":
            backend = event["backend"]
            imports[host] = max(event["seconds"], imports.get(host, 0.0))
        elif event["event"] == "measured":
            bandwidth = event["bytes"] / event["seconds"] * 2 * (world - 1) / world / 1e9
            measured.append(Measured(event["bytes"], event["seconds"], bandwidth))
        elif event["event"] == "sockets":
            sockets.setdefault(host, set()).update((local, peer) for local, peer in event["connections"])
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
        gids={host: gids for host in output if (gids := _gids(output[host]))},
        sockets={host: tuple(sorted(pairs)) for host, pairs in sockets.items()},
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


def _gids(text: str) -> dict[int, int]:
    """The GID index that NCCL connected with, by its own number of the device."""
    found = (_GID.search(line) for line in text.splitlines())
    return {int(match[1]): int(match[2]) for match in found if match}
