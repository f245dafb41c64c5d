"""What came of a trial run, of `mnt preflight --deep` and `mnt net --deep`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mnt.inventory.hostlist import fold


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
