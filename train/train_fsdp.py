#!/usr/bin/env python3
"""Trains a causal language model under FSDP2: all its state is sharded over the ranks.

    mnt launch train/train_fsdp.py --steps 100 --save-every 50 --out /shared/run1
    torchrun --standalone --nproc-per-node 2 train/train_fsdp.py

bf16 over NCCL on GPUs, fp32 over gloo on CPUs. Checkpoints are DCP's and resume on any number of ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from lm.checkpoints import Progress
from lm.dcp import damage
from lm.loop import train
from lm.model import build_model, build_optimizer, set_learning_rate
from lm.options import Options, command_line
from lm.worker import Worker, run


class FsdpEngine:
    """A model under `fully_shard`, block by block."""

    def __init__(self, options: Options, worker: Worker) -> None:
        model = build_model(
            options.config,
            sequence_length=options.sequence_length,
            seed=options.seed,
            device=worker.device,
        )
        self.model = _shard(model, worker)
        self.optimizer = build_optimizer(self.model, weight_decay=options.weight_decay)
        self._clip = options.clip

    def step(self, micro_batches: list[torch.Tensor], rate: float) -> torch.Tensor:
        losses = []
        for number, tokens in enumerate(micro_batches, start=1):
            # Gradients are summed locally and go over the network once, after the last micro batch.
            self.model.set_requires_gradient_sync(number == len(micro_batches))
            loss = self.model(input_ids=tokens, labels=tokens).loss / len(micro_batches)
            loss.backward()
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._clip)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack(losses).sum()

    def save(self, path: Path, progress: Progress) -> None:
        dcp.save({"app": _State(self, progress)}, checkpoint_id=path)

    def load(self, path: Path) -> Progress:
        state = _State(self, Progress(step=0, samples=0))
        dcp.load({"app": state}, checkpoint_id=path)
        return state.progress

    def damage(self, path: Path) -> str | None:
        return damage(path)


class _State(Stateful):
    """All that a checkpoint holds, in the form that DCP reshards for another number of ranks."""

    def __init__(self, engine: FsdpEngine, progress: Progress) -> None:
        self.engine = engine
        self.progress = progress

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.engine.model, self.engine.optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "step": self.progress.step,
            "samples": self.progress.samples,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.engine.model,
            self.engine.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.progress = Progress(step=state["step"], samples=state["samples"])


def _shard(model: PreTrainedModel, worker: Worker) -> FSDPModule:
    """Shards each transformer block separately, so few are complete at a time; the rest at the root."""
    mesh = init_device_mesh(worker.device.type, (worker.world_size,))
    policy = MixedPrecisionPolicy()
    if worker.device.type == "cuda":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    blocks = model._no_split_modules or ()  # Hugging Face's name for the classes of transformer blocks
    for module in model.modules():
        if type(module).__name__ in blocks:
            fully_shard(module, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def main() -> None:
    options = Options(**vars(command_line("fsdp", __doc__).parse_args()))
    train(FsdpEngine, options)


if __name__ == "__main__":
    run(main)
