"""The command of torchrun, which starts the ranks of a node.

DeepSpeed scripts run under torchrun too, and read the variables that it sets. DeepSpeed's own launcher would
forward the same environment to all nodes, so no node could have its own NIC name (DeepSpeed 0.19 source).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources

from mnt.launch.engines.api import Engine, NodeRole
from mnt.remote.torchrun.rendezvous import BACKEND

REMAINS = "torchrun"

_SOURCE = resources.files("mnt.remote.torchrun").joinpath("rendezvous.py")


def torchrun_engine(
    name: str,
    *,
    script: str,
    local_rank: bool = False,
    env_file: Callable[[Mapping[str, str]], str] | None = None,
) -> Engine:
    """An engine that starts the ranks by torchrun. For the other arguments, see Engine."""
    return Engine(
        name,
        script=script,
        argv=torchrun,
        remains=REMAINS,
        local_rank=local_rank,
        env_file=env_file,
        python_files={
            "mnt_rendezvous.py": _SOURCE.read_text(encoding="utf-8"),
            "mnt_rendezvous-1.dist-info/METADATA": "Name: mnt-rendezvous\nVersion: 1\n",
            "mnt_rendezvous-1.dist-info/entry_points.txt": (
                f"[torchrun.handlers]\n{BACKEND} = mnt_rendezvous:handler\n"
            ),
        },
    )


def torchrun(node: NodeRole) -> list[str]:
    """The argv of one node's torchrun (torch 2.13 `torch.distributed.run`, static rendezvous).

    `--local-addr` keeps the FQDN, which other hosts may not resolve, out of the rendezvous. `--tee=3` also
    writes every rank's stdout and stderr below `--log-dir`. Node 0 hosts the store. With the engine's
    `python_files`, the rendezvous is the static one with a store that listens on the master address only, and
    to which the other nodes connect as soon as it does.

    Without the `--` before the program, argparse would take `--r=16` of the program's for an abbreviation of
    an option of torchrun, and drop the program's first `--`. Torchrun treats each word of the program as a
    template for `$local_rank` (its `macros.substitute`), so `$` of the program's is written as `$$`.
    """
    program = node.program
    # Python would read a script's name with a leading `-` as an option.
    name = f"./{program.name}" if program.name.startswith("-") and not program.module else program.name
    return [
        *node.python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={node.nodes}",
        f"--nproc-per-node={node.nproc}",
        f"--master-addr={node.master_addr}",
        f"--master-port={node.master_port}",
        f"--local-addr={node.local_addr}",
        *(_rendezvous(node) if node.binds_store else [f"--node-rank={node.node_rank}"]),
        "--max-restarts=0",
        "--tee=3",
        f"--log-dir={node.ranks}",
        *(["--module"] if program.module else []),
        "--",
        _literal(name),
        *(["--local_rank=${local_rank}"] if program.local_rank else []),
        *map(_literal, program.args),
    ]


def _literal(word: str) -> str:
    return word.replace("$", "$$")


def _rendezvous(node: NodeRole) -> tuple[str, ...]:
    endpoint = f"--rdzv-endpoint={node.master_addr}:{node.master_port}"
    return f"--rdzv-backend={BACKEND}", endpoint, f"--rdzv-conf=rank={node.node_rank}"
