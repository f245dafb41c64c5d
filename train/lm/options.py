"""The command line that both scripts share."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

TRAIN = Path(__file__).resolve().parent.parent
"""The directory train/ of the release; `outputs` next to it is kept when the release is removed."""


@dataclass(frozen=True)
class Options:
    """The parsed command line; `command_line` says what each option means."""

    config: str
    data: Path
    steps: int
    batch_size: int
    accumulation: int
    sequence_length: int
    lr: float
    final_lr_ratio: float
    warmup: int
    weight_decay: float
    clip: float
    seed: int
    log_every: int
    out: Path
    save_every: int
    keep: int
    resume: str
    timeout: float


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows the defaults, and the description as it is written."""


def command_line(engine: str, description: str) -> argparse.ArgumentParser:
    """The parser of a script. `engine` names its directory in `outputs`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=_Help, allow_abbrev=False)
    model = parser.add_argument_group("model and data")
    model.add_argument("--config", default="tiny", help="a model in train/configs, or a config.json")
    model.add_argument("--data", type=Path, default=TRAIN / "data" / "opticks.txt", help="a UTF-8 text file")
    model.add_argument("--sequence-length", type=_positive, default=128, help="tokens (bytes) in a sample")
    model.add_argument(
        "--seed", type=int, default=0, help="seed of the initial weights and of the data order"
    )

    steps = parser.add_argument_group("optimization")
    steps.add_argument("--steps", type=_positive, default=40, help="total number of optimizer steps")
    steps.add_argument("--batch-size", type=_positive, default=4, help="samples per device and batch")
    steps.add_argument(
        "--accumulation",
        type=_positive,
        default=1,
        help="batches per device and step (global batch: batch size x world size x accumulation)",
    )
    steps.add_argument("--lr", type=float, default=6e-3, help="peak learning rate")
    steps.add_argument("--warmup", type=_count, default=4, help="steps until the peak learning rate")
    steps.add_argument(
        "--final-lr-ratio", type=float, default=0.1, help="final learning rate divided by the peak"
    )
    steps.add_argument(
        "--weight-decay", type=float, default=0.1, help="weight decay of AdamW, applied to matrices"
    )
    steps.add_argument("--clip", type=float, default=1.0, help="maximum gradient norm")

    run = parser.add_argument_group("the run")
    run.add_argument(
        "--out",
        type=Path,
        default=TRAIN.parent / "outputs" / engine,
        help="directory for metrics and checkpoints",
    )
    run.add_argument("--log-every", type=_positive, default=1, help="steps between two lines of output")
    run.add_argument(
        "--save-every",
        type=_count,
        default=0,
        help="steps between two checkpoints (0: none); all nodes must share the directory --out",
    )
    run.add_argument("--keep", type=_positive, default=3, help="number of checkpoints to keep")
    run.add_argument(
        "--resume",
        default="none",
        metavar="auto|none|PATH",
        help="auto: resume from the latest checkpoint in --out, if there is one; PATH: resume from PATH",
    )
    run.add_argument("--timeout", type=float, default=10.0, help="minutes that a rank waits for other ranks")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number
