"""Look on a host for what an inventory could name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mnt.fleet import HostConnection
from mnt.tasks.program import run_program


def survey(connection: HostConnection, packages: Sequence[str], peers: Sequence[str]) -> dict[str, Any]:
    """Environments, storage and routes, as `mnt.facts.survey.Survey.parse` reads them.

    Args:
        packages: the distributions to look up in each environment, by canonical name (PEP 503).
        peers: numeric addresses of the other hosts.

    Raises HostError.
    """
    return run_program(connection, "probe.survey", {"packages": list(packages), "peers": list(peers)})
