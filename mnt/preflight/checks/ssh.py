"""Do logins work, from this machine to every host and from the master to the workers?"""

from __future__ import annotations

from collections.abc import Iterator

from mnt.facts.fleet import FleetFacts
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.registry import Needs, check


@check("ssh", needs=Needs.NOTHING)
def ssh(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host answers over SSH, without a prompt.

    A failure names the phase in which it happened: resolve, connect, banner, key exchange, authentication,
    channel, command, answer. All other checks leave out a host that cannot be reached. The check `host-key`
    reports an unexpected host key.
    """
    for name, error in fleet.errors.items():
        if error.phase != "host key":
            yield Problem(
                hosts=(name,),
                message=f"{error.phase}: {error.reason}",
                found=f"{error.phase}: {error.reason}",
                expected="a login without a prompt, and the probe's answer",
                fix=error.advice or f"ssh -v -o BatchMode=yes {fleet.inventory.host(name).address} true",
            )


@check("host-key", needs=Needs.NOTHING)
def host_key(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host presents the host key that is recorded for it.

    A changed key is always refused, because the host may be another machine. An unknown key is recorded,
    unless the inventory sets `ssh: {host_keys: strict}`.
    """
    for name, error in fleet.errors.items():
        if error.phase == "host key":
            known_hosts = fleet.inventory.host(name).ssh.known_hosts
            yield Problem(
                hosts=(name,),
                message=error.reason,
                found=error.reason,
                expected=f"the key in {known_hosts}",
                fix=error.advice or f"if the host was reinstalled: ssh-keygen -f {known_hosts} -R ADDRESS",
            )


@check("ssh-mesh", severity=Severity.WARN, needs=Needs.MESH, playbook="ssh")
def ssh_mesh(fleet: FleetFacts) -> Iterator[Problem]:
    """The master logs in to every worker without a prompt.

    With `--via pdsh` and `--via mpi`, `mnt launch` needs such logins, as DeepSpeed's own launcher does. With
    `ssh: {mesh: required}` in the inventory it is a failure.
    """
    mesh = fleet.mesh
    failed = {worker: error for worker, error in mesh.items() if error is not None}
    master = fleet.master.name
    required = any(host.ssh.mesh == "required" for host in fleet.hosts)
    severity = Severity.FAIL if required else Severity.WARN
    expected = f"a login from {master} without a prompt"
    refuses = "AllowUsers, DenyUsers and the like in its sshd_config, and from= in ~/.ssh/authorized_keys"
    if len(failed) == len(mesh) > 1:
        yield Problem(
            hosts=(master,),
            message=f"it cannot log in to any worker; of the first it says: {next(iter(failed.values()))}",
            found="no login to any worker",
            expected="a login to every worker without a prompt",
            fix=f"mnt ssh-setup; if the workers refuse its key: {refuses}",
            severity=severity,
        )
        return
    for worker, error in failed.items():
        yield Problem(
            hosts=(master, worker),  # only the master has seen it, and may lie
            message=f"{master} cannot log in to {worker}; {master} says: {error}",
            found=f"{master} says: {error}",
            expected=expected,
            fix=f"mnt ssh-setup; if {worker} refuses its key: {refuses}",
            severity=severity,
        )
