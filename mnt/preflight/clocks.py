"""Which clock is wrong? The majority of all clocks, including the head's, defines the right time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

AGREE = 1.0  # seconds


class Offset(NamedTuple):
    """The seconds by which a host's clock is ahead of the head's, plus or minus `uncertainty`."""

    seconds: float
    uncertainty: float

    def __sub__(self, other: Offset) -> Offset:
        return Offset(self.seconds - other.seconds, self.uncertainty + other.uncertainty)

    @property
    def certain(self) -> float:
        """The offset that is left if all uncertainty is subtracted."""
        return max(0.0, abs(self.seconds) - self.uncertainty)


HEAD = Offset(0.0, 0.0)


def reference(offsets: Mapping[str, Offset]) -> Offset:
    """The clock with which most clocks agree within a second; in a tie, the head's has precedence."""
    clocks = [HEAD, *offsets.values()]
    return max(clocks, key=lambda clock: sum((other - clock).certain <= AGREE for other in clocks))
