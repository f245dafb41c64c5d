"""What the hosts saw of each other over the training network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Endpoint:
    """Where a host is on the training network."""

    nic: str
    address: str  # without a prefix length
    network: str  # of the address, in CIDR form
    mtu: int  # bytes


@dataclass(frozen=True)
class Reached:
    """What one host saw of another over the training network.

    An outcome is `ok`, `refused`, `timeout`, `unreachable`, `denied` (by the first host itself), or
    what the kernel said.
    """

    route: str | None = None  # the interface by which packets leave for it
    no_route: str | None = None  # why there is none
    latency: float | None = None  # seconds for a round trip, as the kernel measured it
    mtu: int | None = None  # bytes, of the path
    full: bool | None = None  # whether a packet of full size gets there; None: not tried
    master: str | None = None  # outcome for the master port; None: not tried, for somebody holds it there
    ports: Mapping[int, str] = field(default_factory=dict)  # outcomes for sample ports of the local range


@dataclass(frozen=True)
class Reach:
    """Who reaches whom over the training network.

    `errors` says why a host that has an endpoint took no part. A pair that `pairs` lacks was not tried: there
    are too many hosts, or one of the two took no part.
    """

    endpoints: Mapping[str, Endpoint]
    pairs: Mapping[str, Mapping[str, Reached]]  # by host, then by target
    errors: Mapping[str, str] = field(default_factory=dict)
