"""Which rank trains on which blocks of the corpus, at which step.

A run is one endless sequence of samples: the blocks in shuffled order, epoch after epoch, with a new shuffle
for each epoch. A step takes the next global batch of this sequence. So the order depends only on the seed. A
checkpoint needs only one number, the samples seen so far, to continue with any number of ranks.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class BlockOrder:
    """The order in which `blocks` blocks are trained on; `seed` chooses the shuffles."""

    blocks: int
    seed: int

    def block(self, sample: int) -> int:
        """The block that is the sample of this number, counted from 0 over all epochs."""
        epoch, position = divmod(sample, self.blocks)
        return _shuffled(self.blocks, self.seed, epoch)[position]

    def micro_batches(
        self, seen: int, *, rank: int, world_size: int, batch_size: int, accumulation: int
    ) -> list[list[int]]:
        """What `rank` trains on in the step after `seen` samples: `accumulation` lists of `batch_size`.

        Together the ranks take samples `seen` to `seen + world_size * batch_size * accumulation`, each once.
        """
        share = batch_size * accumulation
        first = seen + rank * share
        mine = [self.block(sample) for sample in range(first, first + share)]
        return [mine[start : start + batch_size] for start in range(0, share, batch_size)]


@functools.lru_cache(maxsize=2)
def _shuffled(blocks: int, seed: int, epoch: int) -> tuple[int, ...]:
    order = list(range(blocks))
    random.Random(f"{seed}/{epoch}").shuffle(order)  # noqa: S311 - an order that a seed repeats
    return tuple(order)
