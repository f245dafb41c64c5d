"""Can a job bind the ports that it needs?"""

from __future__ import annotations

from collections.abc import Iterator

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import Listener
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.registry import check


@check("port-free")
def port_free(fleet: FleetFacts) -> Iterator[Problem]:
    """No process listens on the master port.

    On the master this is a failure, because the rendezvous could not bind the port. On a worker it is a
    warning: only a job with this worker as its master would fail, but often the process is a leftover of an
    earlier job. The finding names the process, or only the user if it belongs to another user. A connection
    in TIME_WAIT does not occupy the port.
    """
    port = fleet.inventory.network.master_port
    for host, facts in fleet.answers():
        leads = host == fleet.master
        for listener in facts.listeners or ():
            yield Problem(
                hosts=(host.name,),
                message=f"port {port} is in use by {_holder(listener)}",
                found=f"{_holder(listener)} listens on {listener.address}",
                expected=f"port {port} free (inventory: network.master_port)",
                fix=_fix(listener),
                severity=None if leads else Severity.WARN,
            )


def _holder(listener: Listener) -> str:
    user = listener.user or f"uid {listener.uid}"
    if listener.pid is None:
        return f"a process of {user}"
    return f"pid {listener.pid} of {user}: {listener.command or 'a process without a command line'}"


def _fix(listener: Listener) -> str:
    if listener.pid is None:
        end = f"ask {listener.user or f'uid {listener.uid}'} to end it"
    else:
        end = f"end the process if it is a leftover: mnt stop; or kill {listener.pid}"
    return f"{end}; or set network.master_port to another port"
