"""What playbooks/tasks/environment_plan.py takes from the lock file, and from a host that may lie."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "playbooks" / "tasks" / "environment_plan.py"
REQUEST = ["torch>=2.6,<3"]
ANSWER = {
    "path": "/shared/train",
    "python": "/shared/train/bin/python",
    "root": False,
    "request": REQUEST,
    "complete": True,
    "shared": True,
    "ops_shared": False,
    "lock": ["numpy==2.1.0", "torch==2.7.1+cu128"],
}


def run(word: str, **given: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", str(SCRIPT), word],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=60,
    )


def wanted(**changes: Any) -> subprocess.CompletedProcess[str]:
    usual = {"packages": "torch", "require": {"torch": ">=2.6,<3"}, "file": "", "upgrade": False}
    return run("wanted", **{**usual, **changes})


def judge(**changes: Any) -> subprocess.CompletedProcess[str]:
    answer = {key: value for key, value in {**ANSWER, **changes}.items() if value is not None}
    return run("judge", request=REQUEST, said="a banner\r\nmnt-environment: " + json.dumps(answer) + "\r\n")


def test_the_lock_file_counts_for_the_same_requirements(tmp_path: Path) -> None:
    file = tmp_path / "c.lock.json"
    none = {"request": REQUEST, "lock": [], "file": str(file)}
    assert json.loads(wanted(file=str(file)).stdout) == none
    file.write_text(json.dumps({"request": REQUEST, "lock": ANSWER["lock"]}))
    assert json.loads(wanted(file=str(file)).stdout) == {**none, "lock": ANSWER["lock"]}
    assert json.loads(wanted(file=str(file), upgrade=True).stdout) == none
    assert json.loads(wanted(file=str(file), packages="torch numpy").stdout)["lock"] == []
    assert json.loads(wanted().stdout) == {**none, "file": ""}


@pytest.mark.parametrize(
    "kept",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"name": "a package of somebody", "token": "precious"}',
        json.dumps({"request": REQUEST, "lock": "torch==2.7.1"}),
        json.dumps({"request": REQUEST, "lock": ["torch @ http://node3/torch.whl"]}),
    ],
)
def test_a_file_that_is_no_lock_file_is_named(tmp_path: Path, kept: str) -> None:
    file = tmp_path / "c.lock.json"
    file.write_text(kept)
    done = wanted(file=str(file))
    assert done.returncode == 1
    assert done.stderr.startswith(f"{file}")
    assert "environment_upgrade=true" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_answer_is_taken_without_other_keys() -> None:
    done = judge(evil="x")
    assert json.loads(done.stdout) == {key: value for key, value in ANSWER.items() if key != "request"}


@pytest.mark.parametrize(
    "line",
    [
        "evil @ http://10.0.0.3:8000/evil-1.0-py3-none-any.whl",
        "http://10.0.0.3/evil.whl",
        "--index-url=http://10.0.0.3/",
        "-r/etc/passwd",
        "torch==2.7.1 --global-option=x",
        "torch==2.7.1\n--extra-index-url=http://10.0.0.3/",
        "torch==2.7.1\n",
        "torch==2.7.1;python_version>'3'",
        "torch==2.7.*",
        "torch===2.7.1",
        "torch==./evil.whl",
        "torch>=2.7",
        "torch",
        "./torch==1",
        "törch==1",
        "torch==" + "1" * 101,
        ["torch==2.7.1"],
        1,
        None,
    ],
)
def test_a_line_that_is_more_than_a_name_and_a_version(line: Any) -> None:
    done = judge(lock=["numpy==2.1.0", line])
    assert (done.returncode, done.stdout) == (1, "")
    assert "is no line of a lock" in done.stderr


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"request": ["evil"]}, "is for other packages"),
        ({"request": None}, "is for other packages"),
        ({"complete": "yes"}, "no complete of type bool"),
        ({"shared": 1}, "no shared of type bool"),
        ({"root": None}, "no root of type bool"),
        ({"lock": "torch==2.7.1"}, "no lock of type list"),
        ({"lock": []}, "a complete environment without versions"),
        ({"path": {"a": 1}}, "no path of type str"),
        ({"path": "/x\ny"}, "a path that is none"),
        ({"path": "/\udc80"}, "a path that is none"),
        ({"python": "/" * 5000}, "a python that is none"),
        ({"error": "no\nspace"}, "no space"),
        ({"error": ["x"]}, "['x']"),
    ],
)
def test_an_answer_that_does_not_fit(changes: dict[str, Any], says: str) -> None:
    done = judge(**changes)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("", "this host runs no python3: mnt setup system"),
        ("sh: 1: python3:\nnot found", "It said: sh: 1: python3: not found"),
        ("mnt-environment: " + "[" * 60_000, "its answer is no JSON object"),
        ("mnt-environment: [1]", "its answer is no JSON object"),
        ("mnt-environment: " + json.dumps({**ANSWER, "x": "y" * 70_000}), "its answer is no JSON object"),
    ],
)
def test_what_is_no_answer(said: str, says: str) -> None:
    done = run("judge", request=REQUEST, said=said)
    assert done.returncode == 1
    assert says in done.stderr
    assert len(done.stderr) < 1000
