"""Whether a rank has the GPU that it was promised. Pure, without torch."""

from __future__ import annotations


def missing_gpus(promised: int, seen: int, local_rank: int, torch: str) -> str | None:
    """Why this rank must not train: it would do so on the CPU, or has no GPU of its own. None: it may.

    Args:
        promised: MNT_GPUS, which `mnt launch` sets on a host that has `gpus` in the inventory; 0: nothing.
        seen: the GPUs that torch sees.
        torch: its version.
    """
    if seen < promised:
        return (
            f"torch {torch} sees {seen} of the {promised} GPUs that this node was promised: install a build"
            f" for GPUs, correct CUDA_VISIBLE_DEVICES, or set `gpus` in the inventory to {seen}"
        )
    if seen and local_rank >= seen:
        return f"local rank {local_rank} has no GPU: torch sees {seen}; start at most {seen} processes a node"
    return None
