from __future__ import annotations

from collections.abc import Iterator

import pytest
from job_host import JobHost, new_directory


@pytest.fixture
def host() -> Iterator[JobHost]:
    """A host that runs jobs, by an ordinary user; nothing of them is left afterwards."""
    job_host = JobHost(new_directory())
    yield job_host
    job_host.clean_up()
    job_host.remove()
