"""The learning rate of each step."""

from __future__ import annotations

import math


def learning_rate(step: int, *, peak: float, warmup: int, total: int, final_ratio: float) -> float:
    """The learning rate of `step`: a linear warm-up, then half a cosine down to `peak * final_ratio`.

    Args:
        step: from 1 to `total`; beyond `total` the rate stays at its final value.
        peak: the rate of step `warmup`.
        warmup: how many steps the rate rises; 0 starts at the peak.
        total: how many steps the training has.
        final_ratio: the last step's rate as a fraction of the peak.
    """
    if step < warmup:
        return peak * step / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return peak * (final_ratio + (1 - final_ratio) * (1 + math.cos(math.pi * progress)) / 2)
