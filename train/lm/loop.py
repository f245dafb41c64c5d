"""The training loop, the same for every engine."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
import torch.distributed as dist

from lm import checkpoints
from lm.checkpoints import Progress
from lm.corpus import load_blocks
from lm.errors import TrainingError
from lm.metrics import MetricsFile, StepMetrics, step_line
from lm.options import Options
from lm.order import BlockOrder
from lm.schedule import learning_rate
from lm.worker import Worker, join, leave


class Engine(checkpoints.SavesAndLoads, Protocol):
    """A model spread over all ranks, with its optimizer."""

    def step(self, micro_batches: list[torch.Tensor], rate: float) -> torch.Tensor:
        """One optimizer step.

        Args:
            micro_batches: what this rank trains on, each int64 tokens of shape (batch size, sequence length).
            rate: the learning rate.

        Returns:
            The mean loss over this rank's micro batches: a scalar on the device, without a graph.
        """


def train(build_engine: Callable[[Options, Worker], Engine], options: Options) -> None:
    """Joins the other ranks, trains until the last step, saves on the way, and leaves.

    Raises:
        TrainingError: something that a person can repair; `lm.worker.run` prints it.
    """
    worker = join(options.timeout)
    blocks = load_blocks(options.data, options.sequence_length)
    engine = build_engine(options, worker)
    start = _start(engine, worker, options)
    _steps(engine, worker, options, blocks, start)
    leave()


def _start(engine: Engine, worker: Worker, options: Options) -> Progress:
    """Loads the checkpoint that the run resumes from, if any."""
    checkpoint = checkpoints.prepare(
        engine, worker, out=options.out, saving=options.save_every > 0, resume=options.resume
    )
    if checkpoint is None:
        if worker.leads and options.resume == "auto":
            print(f"No checkpoint in {options.out}: starting at step 1", flush=True)
        return Progress(step=0, samples=0)
    progress = engine.load(checkpoint)
    if worker.leads:
        print(f"Resumed from {checkpoint}, after step {progress.step}", flush=True)
    return progress


def _steps(engine: Engine, worker: Worker, options: Options, blocks: torch.Tensor, start: Progress) -> None:
    order = BlockOrder(blocks=len(blocks), seed=options.seed)
    global_batch = options.batch_size * options.accumulation * worker.world_size
    if worker.leads:
        print(
            f"Global batch: {options.batch_size} x {worker.world_size} ranks x {options.accumulation} "
            f"= {global_batch} samples of {options.sequence_length} tokens",
            flush=True,
        )
    report = _Report(worker, options, start)
    samples = start.samples
    for step in range(start.step + 1, options.steps + 1):
        mine = order.micro_batches(
            samples,
            rank=worker.rank,
            world_size=worker.world_size,
            batch_size=options.batch_size,
            accumulation=options.accumulation,
        )
        rate = learning_rate(
            step,
            peak=options.lr,
            warmup=options.warmup,
            total=options.steps,
            final_ratio=options.final_lr_ratio,
        )
        loss = engine.step([blocks[batch].to(worker.device) for batch in mine], rate)
        samples += global_batch
        progress = Progress(step, samples)
        if step % options.log_every == 0 or step == options.steps:
            report.step(progress, loss, rate)
        if options.save_every and (step % options.save_every == 0 or step == options.steps):
            with report.clock_stopped():
                checkpoints.save(engine, worker, out=options.out, progress=progress, keep=options.keep)


class _Report:
    """Reports the steps, on rank 0. Losses are averaged over all ranks."""

    def __init__(self, worker: Worker, options: Options, start: Progress) -> None:
        self._worker, self._options = worker, options
        self._file = (
            MetricsFile(options.out / "metrics.jsonl", resumed_at=start.step) if worker.leads else None
        )
        self._reported = start
        self._since = time.perf_counter()

    @contextlib.contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """Excludes the time of the `with` block from the tokens per second."""
        stopped = time.perf_counter()
        yield
        self._since += time.perf_counter() - stopped

    def step(self, progress: Progress, loss: torch.Tensor, rate: float) -> None:
        """Called by all ranks. Raises TrainingError on all of them if the loss is not finite."""
        mean = loss.clone()
        dist.all_reduce(mean)
        value = mean.item() / self._worker.world_size
        tokens = (progress.samples - self._reported.samples) * self._options.sequence_length
        metrics = StepMetrics(
            step=progress.step,
            loss=value,
            learning_rate=rate,
            tokens_per_s=tokens / (time.perf_counter() - self._since),
            samples=progress.samples,
        )
        self._reported, self._since = progress, time.perf_counter()
        if self._file is not None:
            print(step_line(metrics, self._options.steps), flush=True)
            self._file.append(metrics)
        if not math.isfinite(value):
            raise TrainingError(
                f"the loss is {value} at step {progress.step}: try a smaller --lr", on_all_ranks=True
            )
