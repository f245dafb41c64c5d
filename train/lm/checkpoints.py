"""Saving and resuming, on all ranks together. `lm.layout` defines the files."""

from __future__ import annotations

import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch.distributed as dist

from lm.layout import directory_name, latest, outdated, point, saved_steps
from lm.worker import Worker, agree

_SIGHT_S = 5.0
"""Seconds that a node looks for a file that another node has just created: NFS clients see it late."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run: `step` steps done, `samples` blocks trained on."""

    step: int
    samples: int


class SavesAndLoads(Protocol):
    """The checkpoint functions of an engine. `save` and `load` are called on all ranks at the same time."""

    def save(self, path: Path, progress: Progress) -> None: ...

    def load(self, path: Path) -> Progress: ...

    def damage(self, path: Path) -> str | None:
        """Why the checkpoint cannot be loaded, judged by its files; None if it can."""


def prepare(engine: SavesAndLoads, worker: Worker, *, out: Path, saving: bool, resume: str) -> Path | None:
    """Determines the checkpoint to resume from, and checks that saving will work, before the training starts.

    Args:
        saving: whether the run will save checkpoints to `out`.
        resume: `none`, `auto` (the latest of `out`, if any), or a path: a checkpoint or a directory of them.

    Returns:
        The checkpoint, the same on every rank and complete on every node; None for a new run.

    Raises:
        TrainingError: on every rank. The checkpoint is incomplete on some node, the nodes do not share `out`,
            or a new run would mix its checkpoints with those of another run.
    """
    if saving:
        _check_shared(out, worker)
    checkpoint = None if resume == "none" else _resolve(worker, out, resume)
    if checkpoint is not None:
        damage = engine.damage(checkpoint) if worker.leads_node else None
        agree(damage and f"{worker.host}: cannot resume from {checkpoint}: {damage}")
    elif saving:
        mixed = worker.leads and saved_steps(out) != []
        agree(
            f"{out} contains checkpoints of an earlier run: resume it with --resume auto, or set another "
            "directory with --out DIR"
            if mixed
            else None
        )
    return checkpoint


def save(engine: SavesAndLoads, worker: Worker, *, out: Path, progress: Progress, keep: int) -> None:
    """Saves a checkpoint from all ranks, points to it, and removes those that are too old to keep."""
    path = out / directory_name(progress.step)
    if worker.leads:
        # Otherwise files of a crashed run under this name would mix with the new files.
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    dist.barrier()
    engine.save(path, progress)
    dist.barrier()
    if worker.leads:
        point(out, path.name)
        for old in outdated(saved_steps(out), current=progress.step, keep=keep):
            shutil.rmtree(out / directory_name(old))


def _resolve(worker: Worker, out: Path, resume: str) -> Path | None:
    """Rank 0 reads the pointer for all ranks, because every rank must load the same checkpoint."""
    directory = out if resume == "auto" else Path(resume)
    name = [latest(directory) if worker.leads else None]
    dist.broadcast_object_list(name, src=0)
    if name[0] is not None:
        return directory / name[0]
    return None if resume == "auto" else directory


def _check_shared(out: Path, worker: Worker) -> None:
    """Rank 0 writes a file with a random name, and every node must see it: equal paths prove nothing."""
    names = [f".seen-by-all-{uuid.uuid4().hex}" if worker.leads else ""]
    dist.broadcast_object_list(names, src=0)
    probe = out / names[0]
    problem = None
    if worker.leads:
        try:
            out.mkdir(parents=True, exist_ok=True)
            probe.touch()
        except OSError as error:
            problem = f"{worker.host}: cannot write to {out}: {error.strerror}"
    agree(problem)
    unseen = worker.leads_node and not _appears(probe)
    try:
        agree(
            f"{worker.host} does not see what rank 0 writes to {out}: "
            "checkpoints need --out DIR on storage that all nodes share (or --save-every 0)"
            if unseen
            else None
        )
    finally:
        if worker.leads:
            probe.unlink()


def _appears(path: Path) -> bool:
    deadline = time.monotonic() + _SIGHT_S
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
