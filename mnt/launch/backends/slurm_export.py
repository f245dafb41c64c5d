"""A job for sbatch without `mnt` and SSH: each node finds its own NIC, as the inventory says. Pure."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Mapping, Sequence

from mnt.errors import UsageError
from mnt.inventory.hostlist import fold
from mnt.inventory.model import Host, Inventory
from mnt.launch.engines.api import NodeRole
from mnt.launch.export import exports, require_exportable, secrets_needed
from mnt.launch.plan import LaunchOptions
from mnt.launch.shell import path_word

FILE = "job.sbatch"

# What is known on a node only: in the argv of an engine, and what stands for it in the script.
_LOCAL, _RANKS, _MASTER = "@local@", "@ranks@", "@master@"
_NODE_RANK, _NPROC = 987654321, 123456789
_SHELL = {
    _LOCAL: '"$address"',
    _RANKS: '"$logs"',
    _MASTER: '"$MASTER_ADDR"',
    str(_NODE_RANK): '"$SLURM_NODEID"',
    str(_NPROC): '"$nproc"',
}


def batch_file(
    inventory: Inventory,
    hosts: Sequence[Host],
    options: LaunchOptions,
    *,
    count: int | None,
    words: Sequence[str],
    secrets: Sequence[str],
) -> str:
    """The file for sbatch.

    Args:
        hosts: of which Slurm chooses `count`; None: all of them.
        words: further options of sbatch.
        secrets: variables that the environment of `sbatch` must have.

    Raises UsageError: the inventory does not say which NIC a host trains over, the hosts differ in what the
    file has once, or a script cannot have what is asked for.
    """
    require_exportable(hosts)
    if options.engine.by_address:
        raise UsageError(
            "--export: torch numbers the nodes by their addresses, and which they are is not known yet",
            fix="remove --rdzv",
        )
    _require_nics(inventory, hosts)
    first = hosts[0]
    for name in ("python", "workdir", "jobs_dir", "env"):
        if any(getattr(host, name) != getattr(first, name) for host in hosts):
            raise UsageError(
                f"--export: the hosts differ in `{name}`, which a job for sbatch has once",
                fix="select hosts that agree, with -n",
            )
    size = count or len(hosts)
    role = NodeRole(
        python=("@python@",),
        nodes=size,
        node_rank=_NODE_RANK,
        nproc=_NPROC,
        master_addr=_MASTER,
        master_port=inventory.network.master_port,
        local_addr=_LOCAL,
        ranks=_RANKS,
        program=options.program,
        numa=options.numa,
        binds_store=False,
    )
    argv = options.engine.argv(role)
    python = " ".join([path_word(first.python[0]), *map(shlex.quote, first.python[1:])])
    ours = argv.index("--")  # what follows is the program's, as it is
    command = " ".join([python, *map(_word, argv[1:ours]), *map(shlex.quote, argv[ours:])])
    chosen = (
        [] if count is not None and count < len(hosts) else [f"--nodelist={','.join(h.name for h in hosts)}"]
    )
    directives = [f"--nodes={size}", "--ntasks-per-node=1", "--no-requeue", *chosen, *words]
    cases = [
        f"{shlex.quote(host.name)}) nic={shlex.quote(host.nic or inventory.network.nic or '')} "
        f"nproc={host.slots if options.nproc is None else options.nproc} ;;"
        for host in hosts
    ]
    env: Mapping[str, str] = {**first.env, **options.env}
    node = [
        "set -e",
        "case $SLURMD_NODENAME in",
        *cases,
        '*) echo "$SLURMD_NODENAME is not in the inventory" >&2; exit 69 ;;',
        "esac",
        *_find_nic(inventory.network.subnet),
        'if [ "$1" = address ]; then echo "$address"; exit; fi',
        f"cd {path_word(first.workdir)}/current",
        'cd "$(pwd -P)"',
        *exports({"MASTER_PORT": str(inventory.network.master_port), "PYTHONUNBUFFERED": "1"}),
        'export NCCL_SOCKET_IFNAME="=$nic" GLOO_SOCKET_IFNAME="$nic"',
        'export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"',
        *(["export NCCL_IB_DISABLE=1"] if inventory.network.mode == "tcp" else []),
        *exports(env),
        f'logs={path_word(first.jobs_dir)}/slurm-$SLURM_JOB_ID/$SLURMD_NODENAME; mkdir -p "$logs"',
        f"exec {command}",
    ]
    body = "\n".join(node)
    lines = [
        "#!/bin/sh",
        *(f"#SBATCH {word}" for word in directives),
        "# Written by mnt launch --export: sbatch FILE. The code must be in place (mnt push, or by hand).",
        *secrets_needed(secrets),
        f"node={shlex.quote(body)}",
        'MASTER_ADDR=$(sh -c "$node" sh address) || exit',
        "export MASTER_ADDR",
        'exec srun --ntasks-per-node=1 --kill-on-bad-exit=1 --mpi=none /bin/sh -c "$node" sh run',
    ]
    return "\n".join(lines) + "\n"


def _require_nics(inventory: Inventory, hosts: Sequence[Host]) -> None:
    without = [host.name for host in hosts if host.nic is None]
    if without and inventory.network.subnet is None and inventory.network.nic is None:
        raise UsageError(
            f"--export: the inventory does not say over which NIC {fold(without)} trains",
            fix="set network.subnet, network.nic, or `nic` of each host",
        )


def _find_nic(subnet: str | None) -> list[str]:
    """Lines that set `nic` (unless it is known) and `address`, by ip(8)."""
    lines = []
    if subnet is not None:
        network = ipaddress.ip_network(subnet, strict=False)
        lines.append(f"[ -n \"$nic\" ] || nic=$(ip -o addr show to {network} | awk '{{print $2; exit}}')")
    lines.append('address=$(ip -o -4 addr show dev "$nic" | awk \'{split($4, a, "/"); print a[1]; exit}\')')
    lines.append('[ -n "$address" ] || { echo "no address on training NIC $nic" >&2; exit 69; }')
    return lines


def _word(word: str) -> str:
    quoted = shlex.quote(word)
    for mark, shell in _SHELL.items():
        if mark in word:
            name, _, _ = word.partition(mark)
            return f"{shlex.quote(name)}{shell}"
    return quoted
