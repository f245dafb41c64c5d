"""A planned job as files that start it without `mnt`: a hostfile, a script for each node, and one for all.

What needs `mnt` on the hosts is missing there: supervisors, and the store that listens on one address only.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from mnt.errors import UsageError
from mnt.inventory.hostlist import fold
from mnt.inventory.model import Host, Ssh
from mnt.launch.backends.api import Outside
from mnt.launch.plan import LaunchPlan, NodePlan
from mnt.remote.common.files import strerror

START = "start.sh"  # starts all nodes
HOSTFILE = "hostfile"


def node_file(node: NodePlan) -> str:
    """The name of a node's script."""
    return f"{node.node_rank}-{node.host}.sh"


def files_of(
    plan: LaunchPlan, hosts: Sequence[Host], outside: Outside | None, directory: str
) -> dict[str, str]:
    """The files of a plan that was made with `portable`, by name: pure.

    Args:
        hosts: of the plan, in rank order.
        outside: what starts the nodes; None: ssh.
        directory: absolute; pdsh and mpirun need it at this path on each node.

    Raises UsageError: see `require_exportable`.
    """
    require_exportable(hosts)
    found = {HOSTFILE: "".join(f"{node.host} slots={node.nproc}\n" for node in plan.nodes)}
    found |= {node_file(node): node_script(plan, node) for node in plan.nodes}
    found[START] = _start_script(plan, hosts, outside, directory)
    return found


def require_exportable(hosts: Sequence[Host]) -> None:
    """Raises UsageError if the inventory has something for the jobs of a host that only `mnt` does there."""
    for what, needed in {
        "`activate`": [host.name for host in hosts if host.activate],
        "`ulimit`": [host.name for host in hosts if host.ulimit.numbers],
        "a container as `python`": [host.name for host in hosts if host.in_container],
    }.items():
        if needed:
            raise UsageError(
                f"--export: {fold(needed)}: the inventory has {what}, which no script has",
                fix="start the job without --export, or select other hosts",
            )


def node_script(plan: LaunchPlan, node: NodePlan) -> str:
    """The script for `sh` that runs one node's part. It has no secret: they must be in its environment."""
    lines = [
        "#!/bin/sh",
        f"# Run this on {node.host}: node rank {node.node_rank} of {len(plan.nodes)}. Rank 0 is first.",
        *secrets_needed(plan.secret_names),
        f"cd {shlex.quote(node.cwd)} || exit",
        *exports(node.env, node.path_prepend, node.python_path),
        f"exec {shlex.join(node.argv)}",
    ]
    return "\n".join(lines) + "\n"


def secrets_needed(names: Sequence[str]) -> list[str]:
    """Lines for `sh` that end it if a secret is not in its environment."""
    return [f': "${{{name}:?set it: mnt writes no secret into a file}}"' for name in names]


def exports(
    env: Mapping[str, str], path_prepend: Sequence[str] = (), python_path: Sequence[str] = ()
) -> list[str]:
    """Lines for `sh` that set a job's variables."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    for name, directories in (("PATH", path_prepend), ("PYTHONPATH", python_path)):
        lines += [f"export {name}={shlex.quote(each)}${{{name}:+:${name}}}" for each in directories]
    return lines


def _start_script(plan: LaunchPlan, hosts: Sequence[Host], outside: Outside | None, directory: str) -> str:
    if outside is not None and outside.by_hand is not None:
        about = f"# By {outside.name} on {plan.master_host}. {directory} must be at this path on each node."
        return f"#!/bin/sh\n{about}\nexec {shlex.join(outside.by_hand(directory))}\n"
    enter = f"cd {shlex.quote(directory)} || exit"
    lines = ["#!/bin/sh", "# Logs in to each node, node 0 first.", enter, "pids="]
    for node, host in zip(plan.nodes, hosts, strict=True):
        script = shlex.quote(node_file(node))
        lines.append(f'{shlex.join(_login(host))} sh -s <{script} & pids="$pids $!"')
    lines += ["code=0", 'for pid in $pids; do wait "$pid" || code=$?; done', 'exit "$code"']
    return "\n".join(lines) + "\n"


def _login(host: Host) -> list[str]:
    """The words of ssh that log in as the inventory says; ssh_config decides on the rest."""
    ssh = host.ssh
    given = {"-i": ssh.identity, "-l": ssh.user, "-J": ssh.gateway}
    given |= {"-F": None if ssh.config == Ssh.config else ssh.config or "none"}
    given |= {"-p": str(ssh.port) if ssh.port is not None else None}
    words = [word for option, value in given.items() if value for word in (option, value)]
    if ssh.known_hosts != Ssh.known_hosts:
        words += ["-o", f"UserKnownHostsFile={ssh.known_hosts}"]
    return ["ssh", "-o", "BatchMode=yes", *words, host.address.strip("[]")]


def write_files(directory: str, files: Mapping[str, str]) -> None:
    """Write all files into a directory, which is made, or empty. Raises UsageError."""
    try:
        os.makedirs(directory, mode=0o755, exist_ok=True)
        if os.listdir(directory):
            raise UsageError(
                f"--export {directory}: the directory is not empty", fix="name a new one, or empty it"
            )
        for name, text in files.items():
            path = os.path.join(directory, name)
            mode = 0o755 if text.startswith("#!") else 0o644
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise UsageError(f"--export {directory}: {strerror(error)}", fix="name another directory") from None
