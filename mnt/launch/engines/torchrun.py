"""The command of torchrun, which starts the ranks of a node.

DeepSpeed scripts run under torchrun too, and read the variables that it sets. DeepSpeed's own launcher would
forward the same environment to all nodes, so no node could have its own NIC name (DeepSpeed 0.19 source).
"""

from __future__ import annotations

from mnt.launch.engines.api import NodeRole

REMAINS = "torchrun"


def torchrun(node: NodeRole) -> list[str]:
    """The argv of one node's torchrun (torch 2.13 `torch.distributed.run`, static rendezvous).

    `--local-addr` keeps the FQDN, which other hosts may not resolve, out of the rendezvous. `--tee=3` also
    writes every rank's stdout and stderr below `--log-dir`. Torchrun treats each word of the program as a
    template for `$local_rank` (its `macros.substitute`), so `$` is written as `$$`.
    """
    program = node.program
    # torchrun would read a name with a leading `-` as an option.
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
