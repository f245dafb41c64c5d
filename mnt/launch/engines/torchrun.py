"""The command of torchrun, which starts the ranks of a node.

DeepSpeed scripts run under it too, and read the variables that it sets: DeepSpeed's own launcher forwards one
environment to all nodes, which leaves no node a NIC name of its own (DeepSpeed 0.19 source).
"""

from __future__ import annotations

from mnt.launch.engines.api import NodeRole

REMAINS = "torchrun"


def torchrun(node: NodeRole) -> list[str]:
    """The argv of one node's torchrun (torch 2.13 `torch.distributed.run`, static rendezvous).

    `--local-addr` keeps the FQDN, which other hosts may not resolve, out of the rendezvous. `--tee=3` writes
    every rank's stdout and stderr below `--log-dir` as well. The program's words arrive as they are: torchrun
    takes each for a template with `$local_rank` (its `macros.substitute`), in which `$$` stands for a `$`.
    """
    program = node.program
    # torchrun would take a leading `-` for an option of its own.
    script = f"./{program.name}" if program.name.startswith("-") else program.name
    words = ["--module", program.name] if program.module else [script]
    return [
        *node.python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={node.nodes}",
        f"--node-rank={node.node_rank}",
        f"--nproc-per-node={node.nproc}",
        f"--master-addr={node.master_addr}",
        f"--master-port={node.master_port}",
        f"--local-addr={node.local_addr}",
        "--max-restarts=0",
        "--tee=3",
        f"--log-dir={node.ranks}",
        *(word.replace("$", "$$") for word in (*words, *program.args)),
    ]
