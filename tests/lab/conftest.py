"""Real hosts for the tests: `lab` for those that leave it as it was, `make_lab` for those that do not.

A lab's name tells which test session made it: labs of one that was killed are removed by the next.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sessions
from launches import nothing_is_left
from nfs import packages
from waiting import PATIENCE

from mnt.errors import MntError
from mnt.lab import system
from mnt.lab.lab import Lab, LabRequest, down

# Files that take long: each is one worker's, so the others wait for the last one that begins.
LONGEST = (
    "test_leftovers",
    "test_launch",
    "test_setup",
    "test_backends",
    "test_job_faults",
    "test_other_user",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those first."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty home directory: nobody's own jobs, keys and ssh_config are part of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
def lab_support() -> None:
    """Skips where no lab can be made, and says why."""
    try:
        system.require_lab_support(shaping=True)
    except MntError as error:
        pytest.skip(f"no lab can be made here: {error}")
    sessions.reclaim()


@pytest.fixture(scope="session")
def nfs_support(lab_support: None) -> None:
    """Skips where no lab with real NFS can be made, and says why."""
    try:
        packages.require()
    except MntError as error:
        pytest.skip(f"no NFS lab can be made here: {error}; {error.fix}")


@pytest.fixture(scope="session")
def lab(lab_support: None) -> Iterator[Lab]:
    """Four hosts for the whole session. Leave them as you found them."""
    name = sessions.new_name()
    try:
        yield Lab.up(LabRequest(name=name, count=4))
    finally:
        down(name)


@pytest.fixture
def make_lab(lab_support: None) -> Iterator[Callable[..., Lab]]:
    """`make_lab(count=2, rate=..)`: a lab of the test's own, to be broken at will; LabRequest's arguments."""
    names: list[str] = []

    def make(*, python: str | None = None, **request: Any) -> Lab:
        names.append(sessions.new_name())
        return Lab.up(LabRequest(**{"name": names[-1], "count": 2, **request}), python=python)

    try:
        yield make
    finally:
        for name in names:
            down(name)


@pytest.fixture(scope="session")
def run_mnt() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_mnt("preflight", lab=LAB)`: the command line as a process of its own, on that lab's inventory."""

    def run(
        *args: str,
        lab: Lab | None = None,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        timeout: float = PATIENCE,
    ) -> subprocess.CompletedProcess[str]:
        inventory = {"MNT_INVENTORY": str(lab.inventory_path)} if lab is not None else {}
        return subprocess.run(
            [sys.executable, "-m", "mnt", *args],
            env={**os.environ, **inventory, **(env or {})},
            cwd=cwd,
            input=input or "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )

    return run


@pytest.fixture(scope="session")
def mnt(
    lab: Lab, run_mnt: Callable[..., subprocess.CompletedProcess[str]]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`mnt("preflight", "--json")`: the command line on the session's lab. Keywords: those of `run_mnt`."""

    def run(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return run_mnt(*args, **{"lab": lab, **options})

    return run


@pytest.fixture(scope="module")
def pushed(
    mnt: Callable[..., subprocess.CompletedProcess[str]], tree: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`mnt` on the session's lab, with the module's `tree` pushed."""
    done = mnt("push", str(tree))
    assert done.returncode == 0, done.stderr
    return mnt


@pytest.fixture
def no_job_left(lab: Lab) -> Iterator[None]:
    """After the test: no process of any job on any host of the session's lab."""
    yield
    nothing_is_left(lab)
