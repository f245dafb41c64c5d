"""Can every host be logged in to, from here and from the master?"""

from __future__ import annotations

from collections.abc import Iterator

from mnt.facts.fleet import FleetFacts
from mnt.preflight.findings import Problem
from mnt.preflight.registry import Needs, check


@check("ssh", needs=Needs.NOTHING)
def ssh(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host answers over SSH, without a prompt.

    A failure names the phase in which it happened: resolve, connect, banner, key exchange, authentication,
    channel, command, answer. What cannot be reached cannot be checked: the other checks leave that host out.
    A host key that is not the one expected is the matter of `host-key`.
    """
    for name, error in fleet.errors.items():
        if error.phase != "host key":
            yield Problem(
                hosts=(name,),
                message=f"{error.phase}: {error.reason}",
                found=f"{error.phase}: {error.reason}",
                expected="a login without a prompt, and the probe's answer",
                fix=error.fix or f"ssh -v -o BatchMode=yes {fleet.inventory.host(name).address} true",
            )


@check("host-key", needs=Needs.NOTHING)
def host_key(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host shows the host key that is known for it.

    A changed key is refused always, for it may be another machine; an unknown one is recorded, unless the
    inventory says `ssh: {host_keys: strict}`.
    """
    for name, error in fleet.errors.items():
        if error.phase == "host key":
            known_hosts = fleet.inventory.host(name).ssh.known_hosts
            yield Problem(
                hosts=(name,),
                message=error.reason,
                found=error.reason,
                expected=f"the key that {known_hosts} holds",
                fix=error.fix or f"if the host was reinstalled: ssh-keygen -f {known_hosts} -R ADDRESS",
            )


@check("ssh-mesh", needs=Needs.MESH)
def ssh_mesh(fleet: FleetFacts) -> Iterator[Problem]:
    """The master logs in to every worker without a prompt.

    DeepSpeed's own launcher, pdsh and mpirun start the workers from there; people look after jobs from there.
    """
    mesh = fleet.mesh or {}
    failed = {worker: error for worker, error in mesh.items() if error is not None}
    master = fleet.master.name
    expected = f"a login from {master} without a prompt"
    fix = f"mnt ssh-setup; or on {master}: ssh-keygen -t ed25519, then ssh-copy-id each worker"
    if len(failed) == len(mesh) > 1:
        yield Problem(
            hosts=(master,),
            message=f"it cannot log in to any worker; the first says: {next(iter(failed.values()))}",
            found="no login to any worker",
            expected="a login to every worker without a prompt",
            fix=fix,
        )
        return
    for worker, error in failed.items():
        yield Problem(
            hosts=(worker,),
            message=f"{master} cannot log in here: {error}",
            found=str(error),
            expected=expected,
            fix=fix,
        )
