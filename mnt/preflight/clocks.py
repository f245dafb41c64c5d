"""Whose clock is wrong? The majority of all clocks, the head's among them, is taken for right. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

AGREE = 1.0  # seconds


class Offset(NamedTuple):
    """How far a host's clock is ahead of the head's, in seconds, give or take `uncertainty`."""

    seconds: float
    uncertainty: float

    def __sub__(self, other: Offset) -> Offset:
        return Offset(self.seconds - other.seconds, self.uncertainty + other.uncertainty)

    @property
    def certain(self) -> float:
        """By how much it is off at the least."""
        return max(0.0, abs(self.seconds) - self.uncertainty)


HEAD = Offset(0.0, 0.0)


def reference(offsets: Mapping[str, Offset]) -> Offset:
    """The clock with which most clocks agree within a second; the head's where it is as good as any."""
    clocks = [HEAD, *offsets.values()]
    return max(clocks, key=lambda clock: sum((other - clock).certain <= AGREE for other in clocks))
