"""How long each phase of reaching a host may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeouts:
    """Limits in seconds: one a phase of mnt.errors.HostError.

    A phase that is over its limit ends with a HostError of that phase. `authentication` is for each key that
    is tried. `keepalive` is the silence after which a sign of life is asked for; after three that stay
    unanswered the connection counts as lost.
    """

    resolve: float = 10.0
    connect: float = 10.0
    banner: float = 10.0
    key_exchange: float = 15.0
    authentication: float = 15.0
    channel: float = 15.0
    interpreter: float = 15.0  # until the chosen Python runs our code
    command: float = 60.0  # a plain command, where the caller names no limit
    keepalive: float = 2.5  # so a host that dies is known within 14 s: four times that, and a second to look
