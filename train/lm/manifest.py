"""A list of a checkpoint's files, written last. It shows whether a DeepSpeed checkpoint is complete."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds.

    Attributes:
        world_size: how many ranks saved it; DeepSpeed resumes it on as many only.
        zero_stage: the ZeRO stage it was saved under.
        files: bytes by path below the checkpoint's directory.
    """

    world_size: int
    zero_stage: int
    files: dict[str, int]


def write(path: Path, *, world_size: int, zero_stage: int) -> None:
    """Writes `path/manifest.json` with all files below `path`, after all ranks have saved."""
    files = {str(p.relative_to(path)): p.stat().st_size for p in sorted(path.rglob("*")) if p.is_file()}
    draft = path / f".{NAME}.new"
    draft.write_text(json.dumps(asdict(Manifest(world_size, zero_stage, files)), indent=1), encoding="utf-8")
    draft.replace(path / NAME)


def damage(path: Path, *, world_size: int, zero_stage: int) -> str | None:
    """Why `world_size` ranks with `zero_stage` cannot load the checkpoint at `path`; None if they can."""
    if not path.is_dir():
        return "there is no such directory"
    try:
        manifest = Manifest(**json.loads((path / NAME).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return f"{NAME} is missing: the checkpoint is incomplete, or not on storage that this host shares"
    except (OSError, TypeError, ValueError) as error:
        return f"{NAME} cannot be read: {error}"
    if (manifest.world_size, manifest.zero_stage) != (world_size, zero_stage):
        return (
            f"{manifest.world_size} ranks saved it with ZeRO {manifest.zero_stage}, and DeepSpeed cannot "
            f"resume it on {world_size} ranks with ZeRO {zero_stage}"
        )
    for name, size in manifest.files.items():
        try:
            found = (path / name).stat().st_size
        except FileNotFoundError:
            return f"shard {name} is missing"
        if found != size:
            return f"shard {name} has {found} bytes instead of {size}"
    return None
