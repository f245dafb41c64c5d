"""Rows of nvidia-smi for all hosts, as the GPU checks use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.nvidia import Row, label
from mnt.preflight.parity import Subject, by_majority


def rows(facts: HostFacts) -> Sequence[Row]:
    """The GPUs that nvidia-smi shows on a host."""
    return facts.gpus.found if facts.gpus else ()


def all_gpus(fleet: FleetFacts) -> Iterator[tuple[str, Row]]:
    """(host, row) of all GPUs that nvidia-smi shows."""
    return ((host.name, row) for host, facts in fleet.answers() for row in rows(facts))


def label_of(facts: HostFacts, row: Row) -> str:
    """`GPU 3`, for a row that has only the UUID of its GPU."""
    uuid = row.get("gpu_uuid")
    return next((label(gpu) for gpu in rows(facts) if gpu.get("uuid") == uuid), f"GPU {uuid}")


def differing(fleet: FleetFacts, name: str, read: Callable[[Row], str | None], fix: str) -> Iterator[Problem]:
    """Warn about hosts whose GPUs differ from the majority; GPUs that do not report it are left out."""
    values = fleet.reported(
        lambda facts: " and ".join(sorted({found for row in rows(facts) if (found := read(row))})) or None
    )
    subject = Subject(name, "", fix=lambda host, _: fix, tie_fix=lambda _: fix)
    yield from by_majority(subject, values, Severity.WARN)
