from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from job_host import JobHost, new_directory
from local_jobs import LocalMnt, make_python


@pytest.fixture
def host() -> Iterator[JobHost]:
    """A host that runs jobs, by an ordinary user; nothing of them is left afterwards."""
    job_host = JobHost(new_directory())
    yield job_host
    job_host.clean_up()
    job_host.remove()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with a stand-in for torchrun."""
    return make_python(tmp_path_factory.mktemp("python") / "env")


@pytest.fixture
def mnt(tmp_path: Path, python: str) -> Iterator[LocalMnt]:
    """The command line of a user without hosts; none of its jobs is left afterwards."""
    local = LocalMnt(tmp_path, python)
    yield local
    local.clean_up()
