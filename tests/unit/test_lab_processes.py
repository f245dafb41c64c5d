"""Processes are told apart without trusting a pid."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE

from mnt.errors import MntError
from mnt.lab import processes
from mnt.lab.processes import Process

SLEEP = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]


def start(**environment: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(SLEEP, env={**os.environ, **environment}, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()  # it runs: its environment is its own
    return child


@pytest.fixture
def token() -> str:
    return secrets.token_hex(4)


@pytest.fixture
def child(token: str) -> Iterator[subprocess.Popen[bytes]]:
    with start(**{processes.TOKEN_VARIABLE: token}) as process:
        yield process
        process.kill()


def test_a_process_is_alive_until_it_ends_and_never_another_one(child: subprocess.Popen[bytes]) -> None:
    process = processes.identify(child.pid)
    assert process.alive
    assert not Process(process.pid, process.started + 1).alive  # the pid, taken by a later process
    os.kill(child.pid, 9)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not process.alive  # a zombie is dead
    child.wait()
    assert not process.alive


def test_a_name_with_blanks_and_parentheses_confuses_nobody(tmp_path: Path) -> None:
    odd = tmp_path / ") R 1 2 ("
    odd.symlink_to(str(shutil.which("sleep")))
    with subprocess.Popen([odd, "60"]) as child, subprocess.Popen(["sleep", "60"]) as later:
        started, started_later = (processes.identify(each.pid).started for each in (child, later))
        child.kill()
        later.kill()
    assert 0 <= started_later - started < PATIENCE * 100  # ticks


def test_nothing_to_identify() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    with pytest.raises(MntError, match="is gone"):
        processes.identify(ended.pid)


def test_all_that_carries_the_token_ends_and_nothing_else(child: subprocess.Popen[bytes], token: str) -> None:
    with start(**{processes.TOKEN_VARIABLE: token + "0"}) as other:
        assert processes.bearers(token) == [child.pid]
        processes.end_all(token)
        assert child.wait() == -9
        assert other.poll() is None
        other.kill()


def test_nothing_carries_the_token(token: str) -> None:
    assert processes.bearers(token) == []
    processes.end_all(token)
