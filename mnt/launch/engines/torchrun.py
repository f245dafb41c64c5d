"""The command of torchrun, which starts the ranks of a node.

DeepSpeed scripts run under torchrun too, and read the variables that it sets. DeepSpeed's own launcher would
forward the same environment to all nodes, so no node could have its own NIC name (DeepSpeed 0.19 source).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import resources

from mnt.launch.engines.api import Engine, NodeRole
from mnt.remote.torchrun.rendezvous import BACKEND

REMAINS = "torchrun"

_SOURCE = resources.files("mnt.remote.torchrun").joinpath("rendezvous.py")

# As long as torchrun's static rendezvous waits (seconds), also for a store that does not listen yet.
_C10D_TIMEOUT = 600


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
        by_hand=True,
        local_rank=local_rank,
        env_file=env_file,
        python_files=rendezvous_files(),
    )


def rendezvous_files() -> dict[str, str]:
    """The `python_files` with which torchrun knows the rendezvous BACKEND."""
    entry_point = f"[torchrun.handlers]\n{BACKEND} = mnt_rendezvous:handler\n"
    return {
        "mnt_rendezvous.py": _SOURCE.read_text(encoding="utf-8"),
        "mnt_rendezvous-1.dist-info/METADATA": "Name: mnt-rendezvous\nVersion: 1\n",
        "mnt_rendezvous-1.dist-info/entry_points.txt": entry_point,
    }


def with_c10d(engine: Engine) -> Engine:
    """The same engine of torchrun with torch's own dynamic rendezvous, c10d.

    It gives node ranks by the order of the participants, and these are sorted by their address as text (torch
    2.13, `dynamic_rendezvous.py`: `sorted(state.participants)` of `_NodeDesc`). So this order is planned.
    """
    return replace(engine, argv=c10d, python_files={}, by_address=True, open_store=True)


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
    how = _rendezvous(node) if node.binds_store else (f"--node-rank={node.node_rank}",)
    return _command(
        node, f"--master-addr={node.master_addr}", f"--master-port={node.master_port}", rendezvous=how
    )


def c10d(node: NodeRole) -> list[str]:
    """The argv of one node's torchrun with the rendezvous c10d; see `with_c10d`.

    `is_host` names node 0 as the host of the store, which torch would guess from names and addresses.
    """
    conf = f"is_host={int(node.node_rank == 0)},read_timeout={_C10D_TIMEOUT}"
    endpoint = f"--rdzv-endpoint={node.master_addr}:{node.master_port}"
    return _command(
        node,
        rendezvous=("--rdzv-backend=c10d", f"--rdzv-id={node.job}", endpoint, f"--rdzv-conf={conf}"),
    )


def _command(node: NodeRole, *master: str, rendezvous: tuple[str, ...]) -> list[str]:
    program = node.program
    return [
        *node.python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={node.nodes}",
        f"--nproc-per-node={node.nproc}",
        *master,
        f"--local-addr={node.local_addr}",
        *rendezvous,
        *([f"--numa-binding={node.numa}"] if node.numa else []),
        "--max-restarts=0",
        "--tee=3",
        f"--log-dir={node.ranks}",
        *(["--module"] if program.module else []),
        "--",
        literal(program.path),
        *(["--local_rank=${local_rank}"] if program.local_rank else []),
        *map(literal, program.args),
    ]


def literal(word: str) -> str:
    """A word of the program's as torchrun's template for it."""
    return word.replace("$", "$$")


def _rendezvous(node: NodeRole) -> tuple[str, ...]:
    endpoint = f"--rdzv-endpoint={node.master_addr}:{node.master_port}"
    return f"--rdzv-backend={BACKEND}", endpoint, f"--rdzv-conf=rank={node.node_rank}"
