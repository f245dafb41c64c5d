"""What the head cannot write: its own fault, never a host's, and never a success."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_run import own_state  # noqa: F401 - a fixture
from waiting import PATIENCE

from mnt.lab.lab import Lab

Mnt = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A directory on a disk that is full."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k,mode=755", "full", disk], check=True)
    try:
        with pytest.raises(OSError, match="No space"):
            (disk / "filler").write_bytes(b"x" * 100_000)
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "hostname"],
        ["run", "-N", "-n", "node1", "hostname"],
        ["run", "--worker", "ssh", "hostname"],
        ["run", "--json", "hostname"],
        ["run", "-b", "hostname"],
        ["inventory", "show"],
        ["preflight", "--only", "ssh"],
        ["--help"],
        ["run", "--help"],
        ["--version"],
    ],
)
@pytest.mark.parametrize(
    ("redirection", "reason"), [(">&-", "it is closed"), (">/dev/full", "No space left on device")]
)
def test_standard_output(lab: Lab, words: list[str], redirection: str, reason: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", sys.executable, "-m", "mnt", *words],
        env={**os.environ, "MNT_INVENTORY": str(lab.inventory_path)},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    assert f"mnt: standard output: the output cannot be written: {reason}" in done.stderr
    assert "Traceback" not in done.stderr
    assert "node1" not in done.stderr.replace("node[1-4]", "")


def test_files_of_outdir(lab: Lab, full: Path, run_mnt: Mnt) -> None:
    done = run_mnt("run", "-n", "node1", "--outdir", str(full / "out"), "hostname", lab=lab)
    assert done.returncode == 1
    file = full / "out" / "node1.out"
    assert f"mnt: --outdir: {file} cannot be written: No space left on device" in done.stderr
    assert "node1: command" not in done.stderr


def test_known_hosts(lab: Lab, full: Path, tmp_path: Path, run_mnt: Mnt) -> None:
    inventory = tmp_path / "inventory.yaml"
    known = full / "known_hosts"
    text = lab.inventory_path.read_text()
    inventory.write_text(text.replace(f"{lab.directory}/known_hosts", str(known)))
    for command, *words in (["run", "hostname"], ["preflight", "--only", "ssh"]):
        done = run_mnt(command, "-i", str(inventory), *words)
        assert done.returncode == 1
        assert f"mnt: {known}: the host key of node" in done.stderr
        assert "cannot be recorded: No space left on device" in done.stderr


def test_the_hosts_that_failed(lab: Lab, full: Path, run_mnt: Mnt) -> None:
    env = {"XDG_STATE_HOME": str(full / "state")}
    done = run_mnt("run", "-n", "node1", "false", lab=lab, env=env)
    assert done.returncode == 1
    assert f"mnt: {full / 'state'}/mnt/failed/" in done.stderr
    assert "the hosts for -n @failed cannot be saved: No space left on device" in done.stderr
    assert run_mnt("run", "-n", "node1", "true", lab=lab, env=env).returncode == 0  # there is none to save


def test_hosts_of_an_earlier_run_are_not_taken_for_those_of_this_one(
    lab: Lab, full: Path, run_mnt: Mnt
) -> None:
    env = {"XDG_STATE_HOME": str(full / "state")}
    (full / "filler").unlink()
    assert run_mnt("run", "-n", "node2", "false", lab=lab, env=env).returncode == 1
    with pytest.raises(OSError, match="No space"):
        (full / "filler").write_bytes(b"x" * 100_000)
    run_mnt("run", "-n", "node1", "false", lab=lab, env=env)
    again = run_mnt("run", "-n", "@failed", "hostname", lab=lab, env=env)
    assert "no host failed in the last run" in again.stderr


@pytest.mark.parametrize("option", ["--html", "--junit"])
def test_the_report_is_shown_and_the_file_named(lab: Lab, full: Path, run_mnt: Mnt, option: str) -> None:
    file = full / "report"
    done = run_mnt("preflight", "--only", "ssh", option, str(file), lab=lab)
    assert done.returncode == 1
    assert f"mnt: {file}: cannot be written: No space left on device" in done.stderr
    assert "node[1-4]  ok" in done.stdout


def test_a_hostfile(lab: Lab, full: Path, run_mnt: Mnt) -> None:
    file = full / "hostfile"
    done = run_mnt("hostfile", "-o", str(file), lab=lab)
    assert done.returncode == 1
    assert f"mnt: {file}: cannot be written: No space left on device" in done.stderr
