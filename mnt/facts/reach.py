"""Which hosts reach each other over the training network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mnt.tasks.shape import Count, DeviceName, Duration, Port, Short


@dataclass(frozen=True)
class TrainingNic:
    """The NIC by which a host takes part in the training network."""

    name: str
    address: str  # without a prefix length
    network: str  # of the address, in CIDR form
    mtu: Count  # bytes


@dataclass(frozen=True)
class Reached:
    """How one host (the source) reaches another (the target) over the training network.

    An outcome is `ok`, `refused`, `timeout`, `unreachable`, `denied` (by the source itself), or the text of
    another kernel error.
    """

    route: DeviceName | None = None  # the source's interface for packets to the target
    no_route: Short | None = None  # why there is no route
    latency: Duration | None = None  # seconds of a round trip, measured by the kernel
    mtu: Count | None = None  # of the path, in bytes
    full: bool | None = None  # whether a full-size packet arrives; None: not tried
    # Outcome for the master port; None: not tried, a process there holds the port.
    master: Short | None = None
    ports: Mapping[Port, Short] = field(default_factory=dict)  # outcomes for sample ports of the local range

    @property
    def outcomes(self) -> list[str]:
        """Of all ports that were tried."""
        return [*self.ports.values(), *([self.master] if self.master else [])]


@dataclass(frozen=True)
class Reach:
    """The results of all hosts.

    `errors` has the reasons why hosts of `nics` took no part. A pair that is missing from `pairs` was not
    tried, because there are too many hosts or one of the two took no part.
    """

    nics: Mapping[str, TrainingNic] = field(default_factory=dict)  # by host
    pairs: Mapping[str, Mapping[str, Reached]] = field(default_factory=dict)  # by source, then by target
    errors: Mapping[str, str] = field(default_factory=dict)
