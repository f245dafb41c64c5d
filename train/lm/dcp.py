"""torch.distributed.checkpoint (DCP): check that all files of a checkpoint exist."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata


def damage(path: Path) -> str | None:
    """The first thing that is missing in the DCP checkpoint at `path`; None if it is complete.

    DCP itself (torch 2.13) opens the shards during loading, each rank only those that it needs. `.metadata`
    is a pickle: load only checkpoints of people you trust.
    """
    if not path.is_dir():
        return "there is no such directory"
    try:
        metadata = dcp.FileSystemReader(path).read_metadata()
    except FileNotFoundError:
        return ".metadata is missing: the checkpoint is incomplete, or not on storage that this host shares"
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        return f".metadata cannot be read: {error}"
    for name, size in sorted(_shard_sizes(metadata).items()):
        try:
            found = (path / name).stat().st_size
        except FileNotFoundError:
            return f"shard {name} is missing"
        if found < size:
            return f"shard {name} is cut short: {found} of {size} bytes"
    return None


def _shard_sizes(metadata: Metadata) -> dict[str, int]:
    """The minimum size in bytes of each file with tensors and objects of the checkpoint."""
    sizes: dict[str, int] = {}
    for place in metadata.storage_data.values():
        sizes[place.relative_path] = max(sizes.get(place.relative_path, 0), place.offset + place.length)
    return sizes
