"""train_fsdp.py and train_deepspeed.py as torchrun starts them: several processes, gloo, the CPU."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FSDP = ROOT / "train" / "train_fsdp.py"
DEEPSPEED = ROOT / "train" / "train_deepspeed.py"
CACHE = Path(os.environ.get("MNT_CACHE", "/var/cache/mnt"))
PYTHON = Path(os.environ.get("MNT_TRAIN_PYTHON", CACHE / "train-venv" / "bin" / "python"))
DEADLINE_S = 180
"""Far more than any of these runs takes on two busy cores."""

pytestmark = [
    pytest.mark.train,
    pytest.mark.skipif(
        not PYTHON.exists(), reason=f"no training environment at {PYTHON}: run scripts/train-venv.sh"
    ),
]

Losses = dict[int, float]
"""Loss by step."""


def _environment() -> dict[str, str]:
    return {
        "HOME": "/nonexistent",
        "PATH": f"{PYTHON.parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(CACHE / "torch_extensions"),
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _torchrun(processes: int, script: Path, *arguments: object) -> list[str]:
    command = [
        PYTHON,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        processes,
        script,
        *arguments,
    ]
    return [str(word) for word in command]


def _run(processes: int, script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _torchrun(processes, script, *arguments),
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def _train(processes: int, script: Path, out: Path, *arguments: object) -> Losses:
    """Trains to the end and returns what the run wrote of its losses."""
    done = _run(processes, script, "--out", out, *arguments)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        assert f"Step {line['step']}/" in done.stdout or line["step"] <= _resumed_at(done.stdout)
    return {line["step"]: line["loss"] for line in lines}


def _resumed_at(stdout: str) -> int:
    _, found, rest = stdout.partition(", after step ")
    return int(rest.split()[0]) if found else 0


def _falls(losses: Losses) -> bool:
    """A byte-level model starts near ln(384) = 5.95; how often each letter occurs alone gets it to 3.3."""
    return losses[1] > 5.5 and losses[max(losses)] < 3.4


@pytest.mark.parametrize("stage", [1, 3])
def test_deepspeed_learns(stage: int, tmp_path: Path) -> None:
    losses = _train(2, DEEPSPEED, tmp_path, "--steps", 14, "--batch-size", 6, "--zero-stage", stage)
    assert _falls(losses)


def test_deepspeed_learns_saves_and_resumes_on_as_many_ranks_only(tmp_path: Path) -> None:
    arguments = ("--steps", 14, "--batch-size", 3, "--accumulation", 2, "--zero-stage", 2)
    uninterrupted = _train(2, DEEPSPEED, tmp_path, *arguments, "--save-every", 7)
    assert _falls(uninterrupted)

    checkpoint = tmp_path / "step-00000007"
    resumed = _train(2, DEEPSPEED, tmp_path, *arguments, "--resume", checkpoint)
    assert resumed == pytest.approx(uninterrupted, abs=2e-3)

    refused = _run(1, DEEPSPEED, "--out", tmp_path, *arguments, "--resume", checkpoint)
    assert refused.returncode != 0
    assert "2 ranks saved it with ZeRO 2" in refused.stderr
    assert "Step" not in refused.stdout


@pytest.fixture(scope="module")
def fsdp_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Losses]]:
    """Four ranks that trained 12 steps and saved every 6: the directory and the losses. Not to be changed."""
    out = tmp_path_factory.mktemp("fsdp")
    yield out, _train(4, FSDP, out, "--steps", 12, "--batch-size", 3, "--save-every", 6)
    shutil.rmtree(out)


def _copy(run: tuple[Path, Losses], target: Path) -> Path:
    return shutil.copytree(run[0], target / "run")


def test_fsdp_learns(fsdp_run: tuple[Path, Losses]) -> None:
    assert _falls(fsdp_run[1])


def test_fsdp_saved_on_four_ranks_goes_on_alike_on_three(
    fsdp_run: tuple[Path, Losses], tmp_path: Path
) -> None:
    out = _copy(fsdp_run, tmp_path)
    assert (out / "latest").read_text() == "step-00000012\n"
    (out / "latest").write_text("step-00000006\n")  # as if the run had died at step 11
    shutil.rmtree(out / "step-00000012")

    # 3 x 2 x 2 samples make the same global batch as 4 x 3, so each step must come out the same.
    batch = ("--batch-size", 2, "--accumulation", 2)
    resumed = _train(3, FSDP, out, "--steps", 12, *batch, "--resume", "auto", "--save-every", 3, "--keep", 2)

    assert resumed == pytest.approx(fsdp_run[1], abs=2e-3)
    assert sorted(entry.name for entry in out.glob("step-*")) == ["step-00000009", "step-00000012"]
    assert (out / "latest").read_text() == "step-00000012\n"


def test_missing_shard_is_refused_by_name_before_training(
    fsdp_run: tuple[Path, Losses], tmp_path: Path
) -> None:
    out = _copy(fsdp_run, tmp_path)
    (out / "step-00000012" / "__3_0.distcp").unlink()

    refused = _run(2, FSDP, "--out", out, "--steps", 20, "--resume", "auto")

    assert refused.returncode != 0
    told = [line for line in refused.stderr.splitlines() if line.startswith("error: ")]
    assert len(told) == 1, refused.stderr
    assert f"{socket.gethostname()}: cannot resume from {out}/step-00000012" in told[0]
    assert told[0].endswith("shard __3_0.distcp is missing")
    assert "Step" not in refused.stdout


def test_fresh_run_does_not_mix_with_the_checkpoints_of_another(
    fsdp_run: tuple[Path, Losses], tmp_path: Path
) -> None:
    out = _copy(fsdp_run, tmp_path)
    refused = _run(1, FSDP, "--out", out, "--save-every", 5)
    assert refused.returncode != 0
    assert "contains checkpoints of an earlier run" in refused.stderr
    assert (out / "metrics.jsonl").read_text() == (fsdp_run[0] / "metrics.jsonl").read_text()


def test_what_a_dcp_checkpoint_lacks_is_named(fsdp_run: tuple[Path, Losses], tmp_path: Path) -> None:
    whole = fsdp_run[0] / "step-00000012"
    cases = {
        name: shutil.copytree(whole, tmp_path / name) for name in ("metadata", "garbled", "short", "shard")
    }
    (cases["metadata"] / ".metadata").unlink()
    (cases["garbled"] / ".metadata").write_bytes(b"no pickle")
    shard = cases["short"] / "__1_0.distcp"
    shard.write_bytes(shard.read_bytes()[:1000])
    (cases["shard"] / "__2_0.distcp").unlink()
    paths = [whole, tmp_path / "absent", *cases.values()]

    program = "import json, pathlib, sys; from lm.dcp import damage; "
    program += "print(json.dumps({p: damage(pathlib.Path(p)) for p in sys.argv[1:]}))"
    done = subprocess.run(
        [PYTHON, "-c", program, *paths],
        env=_environment() | {"PYTHONPATH": str(ROOT / "train")},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    found = {Path(path).name: damage for path, damage in json.loads(done.stdout).items()}

    assert found["step-00000012"] is None
    assert found["absent"] == "there is no such directory"
    assert found["metadata"].startswith(".metadata is missing")
    assert found["garbled"].startswith(".metadata cannot be read")
    assert found["short"].startswith("shard __1_0.distcp is cut short: 1000 of ")
    assert found["shard"] == "shard __2_0.distcp is missing"


@pytest.mark.skipif(os.geteuid() != 0, reason="root is needed to give a node a disk of its own")
def test_saving_to_a_disk_that_nodes_do_not_share_is_refused_by_host(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def node(rank: int, *prefix: str) -> subprocess.Popen[str]:
        command = [PYTHON, "-m", "torch.distributed.run", "--nnodes", 2, "--node-rank", rank]
        command += [
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            port,
            FSDP,
            "--out",
            out,
            "--save-every",
            5,
        ]
        return subprocess.Popen(
            [*prefix, *map(str, command)],
            env=_environment(),
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    own_disk = f'hostname node2 && mount -t tmpfs none {out} && exec "$@"'
    nodes = [node(0), node(1, "unshare", "--mount", "--uts", "sh", "-c", own_disk, "sh")]
    try:
        (stdout, stderr), _ = (process.communicate(timeout=DEADLINE_S) for process in nodes)
    finally:
        for process in nodes:
            process.kill()
    assert all(process.returncode != 0 for process in nodes)
    assert f"error: node2 does not see what rank 0 writes to {out}" in stderr
    assert "--out DIR" in stderr
    assert "Step" not in stdout
    assert list(out.iterdir()) == []


def test_a_rank_that_fails_tells_the_traceback_in_torchruns_error_file(tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("too short")
    logs = tmp_path / "logs"
    command = _torchrun(1, FSDP, "--data", text, "--out", tmp_path / "out")
    command[3:3] = ["--log-dir", str(logs)]
    done = subprocess.run(
        command, env=_environment(), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode != 0
    assert f"error: the corpus {text} has 10 tokens: too few for --sequence-length 128" in done.stderr
    (error_file,) = logs.rglob("error.json")
    assert "in load_blocks" in error_file.read_text()


def test_sigterm_ends_all_processes_promptly(tmp_path: Path) -> None:
    job = subprocess.Popen(
        _torchrun(2, FSDP, "--out", tmp_path, "--steps", 1_000_000),
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert job.stdout is not None
        for line in job.stdout:
            if line.startswith("Step 2/"):
                break
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=20)  # until the workers, who hold the pipe too, have gone
    finally:
        job.kill()
