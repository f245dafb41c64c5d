"""What is started on a node: FSDP and DeepSpeed training, both under torchrun.

DeepSpeed's own launcher forwards one environment to all nodes, so a NIC name of each node's own cannot be
expressed with it (DeepSpeed 0.19 source); its scripts read the same variables that torchrun sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Engine:
    name: str
    script: str  # what runs when no SCRIPT is given: a path in the release


ENGINES = {
    engine.name: engine
    for engine in (
        Engine("fsdp", script="train/train_fsdp.py"),
        Engine("deepspeed", script="train/train_deepspeed.py"),
    )
}


def torchrun(
    python: Sequence[str],
    *,
    nodes: int,
    node_rank: int,
    nproc: int,
    master_addr: str,
    master_port: int,
    local_addr: str,
    log_dir: str,
    program: Sequence[str],
) -> list[str]:
    """The argv of one node's torchrun (torch 2.13 `torch.distributed.run`, static rendezvous).

    `--local-addr` keeps the FQDN, which other hosts may not resolve, out of the rendezvous. `--tee=3` writes
    every rank's stdout and stderr below `log_dir` as well. What `program` says arrives as it is: torchrun
    takes each for a template with `$local_rank` (its `macros.substitute`), in which `$$` stands for a `$`.
    """
    return [
        *python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={nodes}",
        f"--node-rank={node_rank}",
        f"--nproc-per-node={nproc}",
        f"--master-addr={master_addr}",
        f"--master-port={master_port}",
        f"--local-addr={local_addr}",
        "--max-restarts=0",
        "--tee=3",
        f"--log-dir={log_dir}",
        *(word.replace("$", "$$") for word in program),
    ]
