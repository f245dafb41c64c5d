"""Fuzzed jobs: what hosts say of them, and what others wrote into their files. See tests/fuzzing.py."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from fuzzing import TEXTS, mutated, run_cases, sent
from test_fuzz_answers import entry
from test_fuzz_facts import LIAR, NAMES

from mnt import ui
from mnt.cli import status
from mnt.cli.stop import show_stopped
from mnt.errors import HostError, UsageError
from mnt.fleet import Outcome
from mnt.inventory.hostlist import expand, fold
from mnt.launch.jobs import host_of_rank, jobs_to_stop, merge_jobs, named_job
from mnt.launch.stop import stop_document
from mnt.remote.job import files, jobctl, procs
from mnt.remote.job.channel import Event
from mnt.remote.job.files import JobPaths
from mnt.remote.job.list import answer_of
from mnt.remote.job.remains.torchrun import TorchrunRemains
from mnt.remote.job.verdict import reason_of, verdict
from mnt.tasks.bootstrap import BadFrame
from mnt.tasks.job import JobEntry, Jobs, Stopped
from mnt.tasks.shape import shaped

DATA = Path(__file__).parents[1] / "data" / "torchrun"
STATES = ("starting", "running", "finished", "failed", "stopped", "lost", "pending")


def test_fuzz_entries(capsys: pytest.CaptureFixture[str]) -> None:
    """What one host says of a job, through status and stop."""

    def case(rng: random.Random) -> None:
        answers: dict[str, Any] = {}
        for name in NAMES:
            said: Any = {"now": time.time(), "jobs": [{**entry(name), "state": rng.choice(STATES)}]}
            try:
                lie = sent(mutated(rng, said)) if name == LIAR else said
                answers[name] = (shaped(name, lie, Jobs), rng.choice((0.0, 1e9, -5.0)))
            except (HostError, BadFrame):
                if name != LIAR:
                    raise
        jobs = merge_jobs(answers, unreachable=set(NAMES) - answers.keys())
        ui.document({"jobs": [job.document(time.time()) for job in jobs]})
        status._show_jobs(jobs, 20, "the hosts")
        for job in jobs:
            status._show_job(job)
            assert job.exit_code is None or 0 <= job.exit_code <= 255
            try:
                host_of_rank(job, 3)
                named_job(jobs, job.job)
                jobs_to_stop(jobs, everything=False)
            except UsageError:
                pass
        ours = [job for job in jobs if job.job == entry(LIAR)["job"]]
        assert ours
        assert {node.host for node in ours[0].nodes} >= answers.keys() - {LIAR}
        capsys.readouterr().out.encode()

    run_cases("fuzz_entries", case)


def test_fuzz_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    def case(rng: random.Random) -> None:
        said = {
            "status": rng.choice(("left", "stopped", "none")),
            "killed": 3,
            "left": [7],
            "port_free": True,
        }
        answer = shaped(LIAR, sent(mutated(rng, said)), Stopped)
        document = stop_document(Outcome(LIAR, answer, None, 0.0))
        ui.document(document)
        show_stopped(LIAR, document)

    run_cases("fuzz_stopped", case, allowed=(HostError, BadFrame))


def test_fuzz_fold() -> None:
    """Any names that a host may have give a hostlist again."""

    def case(rng: random.Random) -> None:
        letters = "a1-_.09"
        names = ["".join(rng.choices(letters, k=rng.randint(1, 250))).lstrip("-.") or "a" for _ in range(3)]
        stem = rng.choice(names)[:20]
        hosts = list(dict.fromkeys([*names, *(f"{stem}{number}" for number in range(rng.randint(0, 4)))]))
        assert expand(fold(hosts)) == hosts

    run_cases("fuzz_fold", case)


# --- files -------------------------------------------------------------------------------------------------

JOB, HOST = "20260101-120000-abc123", "node1"


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that would have been signalled. Nothing is: a fuzzed file may name any process."""
    pids: list[int] = []
    monkeypatch.setattr(procs.os, "kill", lambda pid, signum: pids.append(pid))
    monkeypatch.setattr(procs, "_open_process", lambda pid: None)
    return pids


def documents() -> dict[str, Any]:
    """The files of a job that ran, and whose supervisor is gone."""
    about = entry(HOST)
    names = (
        "job",
        "host",
        "node_rank",
        "nodes",
        "engine",
        "release",
        "backend",
        "outside_id",
        "master",
        "created",
    )
    spec = {name: about[name] for name in names}
    state = {name: value for name, value in about.items() if name not in names}
    supervisor = {"pid": 2**22, "start_time": 5, "boot_id": procs.boot_id()}
    return {
        "spec": {**spec, "argv": ["python"], "env": {}, "cwd": "/", "jobs_dir": "/x", "remains": "torchrun"},
        "about": {"format": 1, **spec},
        "state": {"format": 1, **state, "supervisor": supervisor, "killed": 2, "left": []},
        "processes": {
            "supervisor": supervisor,
            "port": 29500,
            "processes": [{"pid": 2**22, "start_time": 5}],
        },
        "stop_request": {"grace": 0.0},
        "unsaved_state": None,
    }


def test_fuzz_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signalled: list[int]) -> None:
    """List, logs and stop, of a job among whose files some are wrong; the head accepts what the host says."""
    monkeypatch.setattr(files, "_TMP", str(tmp_path / "tmp"))
    monkeypatch.setattr(procs.Ending, "PATIENCE", 0.0)
    monkeypatch.setattr("mnt.remote.job.stop.SWEEP", 0.0)
    monkeypatch.setattr("mnt.remote.job.stop.LOOK_EVERY", 0.0)
    monkeypatch.setattr("mnt.remote.job.logs.LOOK_EVERY", 0.0)
    (tmp_path / "tmp").mkdir()
    good = JobPaths(str(tmp_path / "jobs"), "good", HOST)
    os.makedirs(good.directory)
    Path(good.about).write_text(json.dumps({**documents()["about"], "job": "good"}))
    names = {"jobs_dir": str(tmp_path / "jobs"), "job": JOB, "host": HOST}

    def case(rng: random.Random) -> None:
        paths = JobPaths(names["jobs_dir"], JOB, HOST)
        os.makedirs(paths.directory)
        paths.make_local()
        wrong = rng.choice(("spec", "about", "state", "processes", "stop_request"))
        for name, document in documents().items():
            if name == wrong or rng.random() < 0.1:
                document = mutated(rng, document)
            if document is not None and rng.random() < 0.95:
                Path(getattr(paths, name)).write_text(torn(rng, json.dumps(document)))
        Path(paths.output).write_bytes(b"caf\xe9\n")
        listed = answer_of(names["jobs_dir"], HOST)
        jobs = shaped(HOST, sent(listed), Jobs)
        assert "good" in {each["job"] for each in jobs["jobs"]}
        for action in (
            {"action": "logs", "rank": rng.choice((None, 0, 1)), "offsets": {}, "follow": False},
            {"action": "stop", "grace": 0.0},
            {"action": "logs", "rank": None, "offsets": {"output": 3}, "follow": False},
        ):
            answer = jobctl.main({**names, **action}, lambda frame: sent(frame), None)  # type: ignore[arg-type]
            if "refused" not in answer:
                if action["action"] == "stop":
                    shaped(HOST, sent(answer), Stopped)
                else:
                    shaped(HOST, sent(answer["node"]), JobEntry)
        assert signalled == []
        files.remove_files(paths)

    run_cases("fuzz_files", case)


def torn(rng: random.Random, text: str) -> str:
    return text if rng.random() < 0.95 else text[: rng.randint(0, len(text))]


def test_fuzz_remains(tmp_path: Path) -> None:
    """What the ranks of a job have left, whose failure the head must accept."""
    samples = sorted(path for path in DATA.iterdir() if path.is_dir())
    output = [file.read_text() for file in sorted(DATA.rglob("output.log"))] or ["ChildFailedError:\n"]
    errors = [json.loads(file.read_text()) for file in sorted(DATA.rglob("error.json"))]
    assert samples
    assert errors

    def case(rng: random.Random) -> None:
        attempt = tmp_path / "run" / rng.choice(("attempt_0", "attempt_²", "attempt_" + "9" * 200))
        ranks = [attempt / rng.choice(("0", "1", "²", "9" * 200, "x")) for _ in range(3)]
        for rank in ranks:
            rank.mkdir(parents=True, exist_ok=True)
            (rank / "error.json").write_text(torn(rng, json.dumps(mutated(rng, rng.choice(errors)))))
            (rank / "stderr.log").write_bytes(
                rng.randbytes(20) + b"Traceback (most recent call last)\nE: \xff\n"
            )
        text = mutated(rng, {"": rng.choice(output)})
        local, code = rng.choice(("0", "9" * 30)), rng.choice(("-9", "9" * 9000, "٣"))
        words = f"{text}\nChildFailedError:\n[0]:\n  time : x\n"
        words += f"  rank      : {rng.choice(TEXTS)} (local_rank: 0)\n"
        words += f"  rank      : 0 (local_rank: {local})\n  exitcode  : {code}"
        found = TorchrunRemains().failure(
            words, str(tmp_path), rng.choice((0, 5)), 2, rng.choice((-9, 1, -200, 400))
        )
        ended = verdict(1, rng.choice((None, {"request": True})), found)
        shaped(HOST, sent({**entry(HOST), **ended, "reason": None}), JobEntry)
        for path in sorted(attempt.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        attempt.rmdir()

    run_cases("fuzz_remains", case)


def test_fuzz_reasons() -> None:
    """What another node says of its end becomes a reason that the head accepts."""

    def case(rng: random.Random) -> None:
        said = {"failure": entry(HOST)["failure"]}
        told = mutated(rng, said)
        failure = told.get("failure") if isinstance(told, dict) else None
        reason = reason_of(Event("node2", "failed", failure if isinstance(failure, dict) else None), 1.7e9)
        shaped(HOST, sent({**entry(HOST), "reason": reason}), JobEntry)

    run_cases("fuzz_reasons", case)
