"""How long each phase of reaching a host may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeouts:
    """Limits in seconds, for the phases of mnt.errors.HostError.

    A phase that takes longer ends with a HostError of that phase. `authentication` is the limit for each key
    that is tried. After `keepalive` seconds of silence the host is asked for a sign of life; after three
    questions without an answer the connection counts as lost.
    """

    resolve: float = 10.0
    connect: float = 10.0
    banner: float = 10.0
    key_exchange: float = 15.0
    authentication: float = 15.0
    channel: float = 15.0
    start: float = 20.0  # until the login shell, with its start-up files, runs our command
    interpreter: float = 15.0  # until the chosen Python runs our code
    keepalive: float = 2.5  # a dead host is noticed within 14 s: 4 x (2.5 s + 1 s between two looks)
