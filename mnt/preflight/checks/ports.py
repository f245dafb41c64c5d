"""Can a job bind the ports that it needs?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.inventory.model import Host
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.registry import check, host_check


@host_check("store-address", severity=Severity.WARN)
def store_address(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """The torch of every host lets a job's store listen on the training NIC only.

    The store is the server behind the master port. Whoever reaches it can read and change its keys. With a
    torch before 2.5, or an interpreter with `-E` or `-I`, it listens on every address of the master, so also
    on the management network.
    """
    if facts.packages.get("torch") and not facts.binds_store:
        words = " ".join(facts.python.argv) if facts.python else "no interpreter"
        yield Problem(
            message="the store of a job with this master listens on every address",
            found=f"torch {facts.packages['torch']}, started by {words}",
            expected="torch 2.5 or newer, and an interpreter that reads PYTHONPATH",
            fix="install a newer torch, or close the port: playbooks/firewall.yml",
        )


@check("port-free")
def port_free(fleet: FleetFacts) -> Iterator[Problem]:
    """No process listens on the master port.

    On the master this is a failure, because the rendezvous could not bind the port. On a worker it is a
    warning: only a job with this worker as its master would fail, but often the process is a leftover of an
    earlier job. The finding names the job or the process, or only the user if it belongs to another user. A
    connection in TIME_WAIT does not occupy the port.
    """
    port = fleet.master_port
    for host, facts in fleet.answers():
        for listener in facts.listeners or ():
            user = listener.user or f"uid {listener.uid}"
            pasted = shlex.quote(listener.user) if listener.user else user
            if listener.job is not None:
                holder = f"job {listener.job}" + (f" ({listener.job_state})" if listener.job_state else "")
                end = f"mnt stop {listener.job} -n {host.name}, or wait for its end"
            elif listener.pid is None:
                holder, end = f"a process of {user}", f"ask {pasted} to end it"
            else:
                command = listener.command or "a process without a command line"
                holder = f"pid {listener.pid} of {user}: {command}"
                end = f"end the process there if it is a leftover: kill {listener.pid}"
            yield Problem(
                hosts=(host.name,),
                message=f"port {port} is in use by {holder}",
                found=f"{holder} listens on {listener.address}",
                expected=f"port {port} free (inventory: network.master_port)",
                fix=f"{end}; or set network.master_port to another port; for one job: --master-port N",
                severity=None if host == fleet.master else Severity.WARN,
            )
