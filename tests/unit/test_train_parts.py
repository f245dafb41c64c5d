"""What train/ decides: learning rate, data order, file layout, manifest, metrics. No torch needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lm import manifest
from lm.errors import TrainingError
from lm.gpus import missing_gpus
from lm.layout import directory_name, latest, outdated, point, saved_steps, step_of
from lm.metrics import MetricsFile, StepMetrics, step_line
from lm.options import command_line
from lm.order import BlockOrder
from lm.schedule import learning_rate


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (1, 0.25),  # warm-up: a quarter of the way
        (3, 0.75),
        (4, 1.0),  # the peak
        (24, 0.55),  # half way down: the mean of peak and floor
        (44, 0.1),  # the last step
        (60, 0.1),  # beyond it
    ],
)
def test_learning_rate_warms_up_and_decays(step: int, expected: float) -> None:
    assert learning_rate(step, peak=1.0, warmup=4, total=44, final_ratio=0.1) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("promised", "seen", "local_rank", "problem"),
    [
        (0, 0, 3, None),  # a CPU job
        (2, 2, 1, None),
        (1, 2, 0, None),
        (2, 0, 0, "torch 2.13.0+cpu sees 0 of the 2 GPUs that this node was promised"),
        (2, 1, 0, "torch 2.13.0+cpu sees 1 of the 2 GPUs that this node was promised"),
        (0, 2, 2, "local rank 2 has no GPU: torch sees 2; start at most 2 processes a node"),
    ],
)
def test_a_rank_without_the_gpu_that_it_was_promised(
    promised: int, seen: int, local_rank: int, problem: str | None
) -> None:
    found = missing_gpus(promised, seen, local_rank, "2.13.0+cpu")
    assert (found is None) if problem is None else (found or "").startswith(problem)


def test_learning_rate_without_warmup_starts_near_the_peak() -> None:
    assert learning_rate(1, peak=1.0, warmup=0, total=1000, final_ratio=0.0) == pytest.approx(1.0, abs=1e-4)


def test_learning_rate_of_a_run_shorter_than_its_warmup() -> None:
    rates = [learning_rate(step, peak=1.0, warmup=4, total=2, final_ratio=0.1) for step in (1, 2)]
    assert rates == [0.25, 0.5]


def _global_batch(
    order: BlockOrder, seen: int, world_size: int, batch_size: int, accumulation: int
) -> list[int]:
    return [
        block
        for rank in range(world_size)
        for batch in order.micro_batches(
            seen, rank=rank, world_size=world_size, batch_size=batch_size, accumulation=accumulation
        )
        for block in batch
    ]


def test_an_epoch_visits_every_block_once_and_the_next_in_another_order() -> None:
    order = BlockOrder(blocks=24, seed=1)
    first, second = (
        [block for seen in range(start, start + 24, 6) for block in _global_batch(order, seen, 3, 2, 1)]
        for start in (0, 24)
    )
    assert sorted(first) == sorted(second) == list(range(24))
    assert first != second


@pytest.mark.parametrize(
    ("world_size", "batch_size", "accumulation"), [(1, 12, 1), (4, 3, 1), (3, 4, 1), (2, 2, 3), (6, 1, 2)]
)
def test_the_order_does_not_depend_on_how_the_global_batch_is_shared_out(
    world_size: int, batch_size: int, accumulation: int
) -> None:
    order = BlockOrder(blocks=50, seed=7)
    seen = 36  # as a checkpoint says after three steps; this batch ends in the next epoch
    assert _global_batch(order, seen, world_size, batch_size, accumulation) == [
        order.block(sample) for sample in range(36, 48)
    ]


def test_ranks_get_batches_of_the_asked_shape() -> None:
    batches = BlockOrder(blocks=50, seed=7).micro_batches(
        0, rank=1, world_size=2, batch_size=4, accumulation=3
    )
    assert [len(batch) for batch in batches] == [4, 4, 4]


def test_seed_chooses_the_order() -> None:
    one, same, other = (BlockOrder(blocks=30, seed=seed) for seed in (1, 1, 2))
    assert [one.block(i) for i in range(30)] == [same.block(i) for i in range(30)]
    assert [one.block(i) for i in range(30)] != [other.block(i) for i in range(30)]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-00000020", 20),
        ("step-123456789", 123456789),
        ("step-20", None),
        ("latest", None),
        ("step-x", None),
    ],
)
def test_step_of_a_directory_name(name: str, step: int | None) -> None:
    assert step_of(name) == step


def test_saved_steps_finds_what_directory_name_names(tmp_path: Path) -> None:
    for step in (30, 5):
        (tmp_path / directory_name(step)).mkdir()
    (tmp_path / "metrics.jsonl").touch()
    assert saved_steps(tmp_path) == [5, 30]
    assert saved_steps(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("steps", "current", "keep", "expected"),
    [
        ([10, 20, 30], 30, 3, []),
        ([10, 20, 30, 40], 40, 2, [10, 20]),
        ([10], 10, 1, []),
        # Resumed from 10 and saved 20 anew: 30 and 40, of the run before, are later and stay.
        ([10, 20, 30, 40], 20, 1, [10]),
    ],
)
def test_outdated(steps: list[int], current: int, keep: int, expected: list[int]) -> None:
    assert outdated(steps, current=current, keep=keep) == expected


def test_pointer_is_replaced_and_leaves_no_draft(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    point(tmp_path, "step-00000010")
    point(tmp_path, "step-00000020")
    assert latest(tmp_path) == "step-00000020"
    assert [entry.name for entry in tmp_path.iterdir()] == ["latest"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    (tmp_path / "rank_0.pt").write_bytes(b"0" * 100)
    (tmp_path / "rank_1.pt").write_bytes(b"1" * 100)
    manifest.write(tmp_path, world_size=2, zero_stage=3)
    return tmp_path


def test_manifest_of_a_whole_checkpoint(saved: Path) -> None:
    assert manifest.damage(saved, world_size=2, zero_stage=3) is None


def test_manifest_names_a_lost_file(saved: Path) -> None:
    (saved / "rank_1.pt").unlink()
    assert manifest.damage(saved, world_size=2, zero_stage=3) == "shard rank_1.pt is missing"


def test_manifest_names_a_file_cut_short(saved: Path) -> None:
    (saved / "rank_0.pt").write_bytes(b"0" * 60)
    assert manifest.damage(saved, world_size=2, zero_stage=3) == "shard rank_0.pt has 60 bytes instead of 100"


@pytest.mark.parametrize(("world_size", "stage"), [(3, 3), (2, 2)])
def test_manifest_refuses_another_world_size_or_stage(saved: Path, world_size: int, stage: int) -> None:
    damage = manifest.damage(saved, world_size=world_size, zero_stage=stage)
    assert damage is not None
    assert "2 ranks saved it with ZeRO 3" in damage
    assert f"{world_size} ranks with ZeRO {stage}" in damage


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"world_size": 2'])
def test_manifest_absent_or_garbled(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / manifest.NAME).write_text(text)
    damage = manifest.damage(tmp_path, world_size=2, zero_stage=3)
    assert damage is not None
    assert "manifest.json" in damage


def test_manifest_of_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert manifest.damage(tmp_path / "x", world_size=1, zero_stage=1) == "there is no such directory"


def _metrics(step: int) -> StepMetrics:
    return StepMetrics(step=step, loss=2.71828, learning_rate=3e-4, tokens_per_s=12345.6, samples=16 * step)


def test_step_line() -> None:
    assert step_line(_metrics(7), 40) == "Step 7/40 | Loss: 2.7183 | LR: 3.00e-04 | tok/s: 12346"


def test_metrics_of_a_fresh_run_replace_those_of_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "outputs" / "metrics.jsonl"
    for _ in range(2):
        file = MetricsFile(path, resumed_at=0)
        file.append(_metrics(1))
        file.append(_metrics(2))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0]["loss"] == 2.71828


def test_metrics_of_a_resumed_run_go_on_where_the_checkpoint_was(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, resumed_at=0)
    for step in (1, 2, 3):
        first.append(_metrics(step))
    with path.open("a") as file:
        file.write('{"step": 4, "lo')  # killed while it wrote
    MetricsFile(path, resumed_at=2).append(_metrics(3))
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]


def test_metrics_that_cannot_be_written_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file where the directory should be")
    with pytest.raises(TrainingError, match=r"cannot write .*/out/metrics\.jsonl: .*--out"):
        MetricsFile(tmp_path / "out" / "metrics.jsonl", resumed_at=0)


@pytest.mark.parametrize(
    "arguments",
    [["--steps", "0"], ["--batch-size", "-1"], ["--save-every", "-5"], ["--stepz", "3"], ["--step", "3"]],
)
def test_bad_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        command_line("fsdp", "").parse_args(arguments)
    assert stop.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_outputs_lie_beside_train_in_the_release() -> None:
    out = command_line("fsdp", "").parse_args([]).out
    assert out == Path(__file__).resolve().parents[2] / "outputs" / "fsdp"
