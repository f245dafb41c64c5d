"""pdsh on node 0 starts the supervisors of all nodes, by the logins that `mnt ssh-setup` has made."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mnt.launch.backends.api import Outside, start_line
from mnt.launch.backends.ssh import SshBackend

if TYPE_CHECKING:
    from mnt.launch.plan import LaunchPlan


class PdshBackend(SshBackend):
    """As over SSH, but for the start. pdsh ends when all supervisors are started."""

    name = "pdsh"

    def outside(self, plan: LaunchPlan) -> Outside | None:
        hosts = [node.host for node in plan.nodes]
        # In the background, without the session's streams: then the session ends, and pdsh too.
        line = f"nohup sh -c {shlex.quote(start_line(plan.job))} </dev/null >/dev/null 2>&1 &"

        def by_hand(directory: str) -> tuple[str, ...]:
            return _argv(hosts, f"exec sh {shlex.quote(directory)}/*-%h.sh")

        return Outside(
            self.name, _argv(hosts, line), ends=True, needs_first={"pdsh": "pdsh"}, by_hand=by_hand
        )


def _argv(hosts: Sequence[str], line: str) -> tuple[str, ...]:
    """-S: the largest code of all hosts. The user of each host is that of its own ssh_config, not -l%u."""
    arguments = "PDSH_SSH_ARGS=-a -x -o BatchMode=yes %h"
    return ("env", arguments, "pdsh", "-S", "-R", "ssh", "-f", str(len(hosts)), "-w", ",".join(hosts), line)
