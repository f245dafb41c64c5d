"""The metrics of each step: a line for people, a JSON line for programs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from lm.errors import TrainingError


@dataclass(frozen=True)
class StepMetrics:
    """One step of all ranks together.

    Attributes:
        step: from 1.
        loss: mean cross entropy in nats a token, over the global batch.
        learning_rate: used in this step.
        tokens_per_s: tokens that all ranks together trained on, by the second.
        samples: blocks trained on since the run began.
    """

    step: int
    loss: float
    learning_rate: float
    tokens_per_s: float
    samples: int


def step_line(metrics: StepMetrics, total: int) -> str:
    return (
        f"Step {metrics.step}/{total} | Loss: {metrics.loss:.4f} | LR: {metrics.learning_rate:.2e} "
        f"| tok/s: {metrics.tokens_per_s:.0f}"
    )


class MetricsFile:
    """JSON lines, one object per step. A resumed run continues after the step of its checkpoint."""

    def __init__(self, path: Path, *, resumed_at: int) -> None:
        """Creates the file and its directory.

        Args:
            resumed_at: the step of the checkpoint that the run starts from, 0 for a fresh run.

        Raises:
            TrainingError: the directory or the file cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = [line for line in _lines(path) if json.loads(line)["step"] <= resumed_at]
            path.write_text("".join(kept), encoding="utf-8")
        except OSError as error:
            raise TrainingError(
                f"cannot write {path}: {error.strerror}; set another directory with --out"
            ) from error
        self._path = path

    def append(self, metrics: StepMetrics) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(metrics)) + "\n")


def _lines(path: Path) -> list[str]:
    """The whole lines of the file; a killed run may have left half a line at its end."""
    if not path.exists():
        return []
    return [
        line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("}\n")
    ]
