"""The scripts that build what labs use: another user cannot hold them up, or get at what they build."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import read_until

SCRIPTS = Path(__file__).parents[2] / "scripts"
EVE = 64999

HOLD = f"""
import fcntl, os, sys
os.setgroups([]); os.setgid({EVE}); os.setuid({EVE})
try:
    descriptor = os.open(sys.argv[1], os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("held", flush=True)
    sys.stdin.read()
except OSError as error:
    print(error.strerror, flush=True)
"""

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@pytest.fixture
def cache() -> Iterator[Path]:
    """A place that others can enter."""
    top = Path(tempfile.mkdtemp(prefix="mnt-test-"))
    top.chmod(0o755)
    yield top
    shutil.rmtree(top)


def run(*argv: str | Path, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in argv],
        env={**os.environ, "MNT_CACHE": str(cache), "MNT_LOCK_SECONDS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def as_eve(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    ("script", "lock"), [("train-venv.sh", ".train-venv.lock"), ("nfs-packages.sh", "uml.lock")]
)
def test_another_user_holds_the_lock_that_an_earlier_version_made(
    script: str, lock: str, cache: Path
) -> None:
    (cache / lock).touch(mode=0o644)
    with as_eve(cache / lock) as eve:
        assert read_until(eve, "held")
        done = run("bash", SCRIPTS / script, cache=cache)
        holder = f"process {eve.pid} of UNKNOWN ("
        assert done.returncode == 1
        assert f"waiting for {holder}" in done.stdout
        assert done.stderr.startswith(f"error: {cache / lock} is still locked by {holder}"), done.stderr
        eve.communicate("")
    with as_eve(cache / lock) as eve:  # never again
        assert eve.communicate("")[0] == "Permission denied\n"


def test_a_lock_is_nobody_elses(cache: Path) -> None:
    script = f". {SCRIPTS}/lib.sh; umask 022; hold_lock {cache}/lock; flock -n {cache}/lock true || echo held"
    assert run("bash", "-euc", script, cache=cache).stdout == "held\n"
    assert stat.S_IMODE((cache / "lock").stat().st_mode) == 0o600
    assert run("flock", "-n", cache / "lock", "true", cache=cache).returncode == 0


def test_a_lock_where_no_file_can_be_made(cache: Path) -> None:
    done = run("bash", "-euc", f". {SCRIPTS}/lib.sh; hold_lock {cache}/none/lock; echo no", cache=cache)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {cache}/none/lock cannot be opened")


@pytest.mark.parametrize("lock", ["file", "link", "directory"])
def test_an_op_that_an_earlier_version_built_is_closed_to_others(cache: Path, lock: str) -> None:
    """The environment is up to date: nothing else is done."""
    op = cache / "torch_extensions" / "deepspeed_shm_comm"
    op.mkdir(parents=True)
    op.chmod(0o1777)
    (op / "op.so").touch()
    if lock == "link":
        (op / "lock").symlink_to("op.so")  # root's own file
    elif lock == "directory":
        (op / "lock" / "deep").mkdir(parents=True)
    else:
        (op / "lock").touch()
    os.chown(op / "lock", EVE, EVE, follow_symlinks=False)
    requirements = SCRIPTS.parent / "train" / "requirements.txt"
    fingerprint = f"{{ /usr/bin/python3 -V && cat {requirements}; }} | sha256sum"
    (cache / "train-venv").mkdir()
    (cache / "train-venv" / ".complete").write_text(run("bash", "-c", fingerprint, cache=cache).stdout)
    done = run("bash", SCRIPTS / "train-venv.sh", cache=cache)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(op.stat().st_mode) == 0o755
    assert os.listdir(op) == ["op.so"]
