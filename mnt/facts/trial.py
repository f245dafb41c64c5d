"""The result of the trial run of `mnt preflight --deep` and `mnt net --deep`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mnt.inventory.hostlist import fold


@dataclass(frozen=True)
class Measurement:
    """The median of several all-reduces of one size."""

    bytes: int
    seconds: float
    bandwidth: float  # bus bandwidth in GB/s as in nccl-tests: bytes/seconds x 2(n-1)/n


@dataclass(frozen=True)
class TrialCulprit:
    """The host that ended the trial, and why."""

    host: str
    message: str
    others: tuple[str, ...] = ()  # if it may as well be one of these

    @property
    def hosts(self) -> tuple[str, ...]:
        return (self.host, *self.others)


@dataclass(frozen=True)
class Trial:
    """All-reduces of ones on `hosts`, over the training NICs.

    `obstacle` is why nothing was launched; `culprit` is the host that ended the run. If both are None, the
    trial ran to its end.
    """

    hosts: tuple[str, ...]
    obstacle: str | None = None
    culprit: TrialCulprit | None = None
    without_torch: tuple[str, ...] = ()  # hosts without the torch package; then nothing was launched
    backends: Mapping[str, str] = field(default_factory=dict)  # host -> nccl or gloo, as it says
    world_size: int = 0  # ranks
    import_seconds: Mapping[str, float] = field(default_factory=dict)  # host -> seconds of its slowest rank
    measurements: tuple[Measurement, ...] = ()
    wrong_sums: Mapping[str, str] = field(default_factory=dict)  # host -> `1 instead of 2`
    nccl_lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # host -> NCCL's own output
    gids: Mapping[str, Mapping[int, int]] = field(default_factory=dict)  # host -> NCCL's device -> GID index
    # With gloo: host -> (local address, peer address) of its sockets; the peer of a listening socket is "".
    sockets: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    @property
    def backend(self) -> str | None:
        """The backend of the measurements: they are those of the first host."""
        return self.backends.get(self.hosts[0]) if self.hosts else None

    @property
    def problem(self) -> tuple[str, str] | None:
        """Why the trial did not succeed, in one line, and the fix; None: it succeeded."""
        more = "run mnt preflight --deep for details"
        if self.without_torch:
            where = f"{fold(self.without_torch)}: torch is not installed for the configured interpreter"
            return where, "install torch, or set `python` of these hosts to the interpreter that has it"
        if self.obstacle is not None:
            return f"not tried: {self.obstacle}", "fix that first; run mnt preflight for details"
        if self.culprit is not None:
            first = next(iter(self.culprit.message.splitlines()), "")
            return f"{fold(self.culprit.hosts)}: the trial failed: {first}", more
        if self.wrong_sums:
            sums = next(iter(self.wrong_sums.values()))
            return (
                f"a sum over all ranks is wrong: {sums}, as measured by {fold(list(self.wrong_sums))}",
                more,
            )
        return None

    def document(self) -> dict[str, Any]:
        """The JSON form for `--json`."""
        return {
            "ok": self.problem is None,
            "backend": self.backend,
            "world_size": self.world_size,
            "import_seconds": dict(self.import_seconds),
            "all_reduce": [
                {"bytes": each.bytes, "seconds": each.seconds, "gigabytes_per_second": each.bandwidth}
                for each in self.measurements
            ],
            "nccl": {host: list(lines) for host, lines in self.nccl_lines.items()},
        }
