"""What the probe found on a host, typed. `HostFacts.parse` is the only reader of the probe's JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Interface:
    """A network interface. Addresses are in CIDR form, `10.11.7.50/24`, in the kernel's order."""

    name: str
    up: bool  # administratively up
    carrier: bool | None  # link detected; None: the driver does not say
    mtu: int  # bytes
    ipv4: tuple[str, ...] = ()
    ipv6: tuple[str, ...] = ()
    altnames: tuple[str, ...] = ()
    mac: str | None = None
    speed: int | None = None  # Mbit/s
    loopback: bool = False
