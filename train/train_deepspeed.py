#!/usr/bin/env python3
"""Trains the same model on the same data as train_fsdp.py, under DeepSpeed's ZeRO 1, 2 or 3.

    mnt launch --engine deepspeed train/train_deepspeed.py --zero-stage 3 --steps 100
    torchrun --standalone --nproc-per-node 2 train/train_deepspeed.py

bf16 over NCCL on GPUs, fp32 over gloo on CPUs. It is started by torchrun, not by the `deepspeed` command.
Checkpoints are DeepSpeed's own and resume on the number of ranks that saved them.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from lm import manifest
from lm.checkpoints import Progress
from lm.errors import TrainingError
from lm.loop import train
from lm.model import CONFIGS, build_model, build_optimizer, set_learning_rate
from lm.options import Options, command_line
from lm.worker import Worker, run

FROM_OPTIONS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "bf16",
    "fp16",
    "optimizer",
    "scheduler",
)
"""Keys that a DeepSpeed config must not set, because the command line sets them for both engines."""


def import_deepspeed() -> ModuleType:
    """Import DeepSpeed, after setting what it reads at import time."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # DeepSpeed 0.19.8 calls collectives by old names, and torch 2.13 warns at every call.
    warnings.filterwarnings("ignore", message="`torch.distributed", category=FutureWarning)
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    return deepspeed


class DeepSpeedEngine:
    """A model under ZeRO."""

    def __init__(self, options: Options, worker: Worker, config: dict[str, Any]) -> None:
        model = build_model(
            options.config,
            sequence_length=options.sequence_length,
            seed=options.seed,
            device=worker.device,
        )
        self.stage: int = config["zero_optimization"]["stage"]
        self.world_size = worker.world_size
        self.leads = worker.leads
        self.engine, self.optimizer, _, _ = import_deepspeed().initialize(
            model=model,
            optimizer=build_optimizer(model, weight_decay=options.weight_decay),
            config=complete_config(config, options, bf16=worker.device.type == "cuda"),
            dist_init_required=False,
        )

    def step(self, micro_batches: list[torch.Tensor], rate: float) -> torch.Tensor:
        set_learning_rate(self.optimizer, rate)
        losses = []
        for tokens in micro_batches:
            loss = self.engine(input_ids=tokens, labels=tokens).loss
            self.engine.backward(loss)  # divides by the number of micro batches
            self.engine.step()  # moves the weights after the last of them only
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def save(self, path: Path, progress: Progress) -> None:
        self.engine.save_checkpoint(
            str(path.parent),
            tag=path.name,
            client_state={"step": progress.step, "samples": progress.samples},
            save_latest=False,  # the loop moves the pointer, when all ranks are done
        )
        dist.barrier()  # the manifest lists the files of all ranks
        if self.leads:
            manifest.write(path, world_size=self.world_size, zero_stage=self.stage)

    def load(self, path: Path) -> Progress:
        _, state = self.engine.load_checkpoint(str(path.parent), tag=path.name)
        return Progress(step=state["step"], samples=state["samples"])

    def damage(self, path: Path) -> str | None:
        return manifest.damage(path, world_size=self.world_size, zero_stage=self.stage)


def read_config(path: Path, *, stage: int | None) -> dict[str, Any]:
    """The DeepSpeed config at `path`, with the ZeRO stage replaced if `stage` is given.

    Raises:
        TrainingError: the file is not valid, or sets what the command line sets.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainingError(f"cannot use the DeepSpeed config {path}: {error}") from error
    clash = [key for key in FROM_OPTIONS if key in config]
    if clash:
        raise TrainingError(f"{path}: remove {', '.join(clash)}: the command line sets this")
    zero = config.setdefault("zero_optimization", {})
    zero["stage"] = stage if stage is not None else zero.get("stage", 2)
    return config


def complete_config(config: dict[str, Any], options: Options, *, bf16: bool) -> dict[str, Any]:
    """`config` with the settings of the command line under DeepSpeed's names."""
    return config | {
        "train_micro_batch_size_per_gpu": options.batch_size,
        "gradient_accumulation_steps": options.accumulation,
        "gradient_clipping": options.clip,
        "bf16": {"enabled": bf16},
    }


def engine_builder(config: dict[str, Any]) -> Callable[[Options, Worker], DeepSpeedEngine]:
    return lambda options, worker: DeepSpeedEngine(options, worker, config)


def parse() -> tuple[Options, argparse.Namespace]:
    parser = command_line("deepspeed", __doc__)
    zero = parser.add_argument_group("DeepSpeed")
    zero.add_argument(
        "--ds-config", type=Path, default=CONFIGS / "ds_config.json", help="DeepSpeed's own config file"
    )
    zero.add_argument(
        "--zero-stage", type=int, choices=(1, 2, 3), help="ZeRO stage; overrides the config file"
    )
    # DeepSpeed's launcher passes it; this script reads LOCAL_RANK, which torchrun sets.
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    arguments = vars(parser.parse_args())
    del arguments["local_rank"]
    own = argparse.Namespace(ds_config=arguments.pop("ds_config"), zero_stage=arguments.pop("zero_stage"))
    return Options(**arguments), own


def main() -> None:
    options, own = parse()
    train(engine_builder(read_config(own.ds_config, stage=own.zero_stage)), options)


if __name__ == "__main__":
    run(main)
