"""Scripts that are started by `accelerate launch`, which runs torchrun in its own process."""

from __future__ import annotations

import re
from functools import partial

from mnt.errors import NeverStarted, UsageError
from mnt.launch.engines.api import Engine, NodeRole
from mnt.launch.engines.torchrun import REMAINS, literal, rendezvous_files
from mnt.remote.torchrun.rendezvous import BACKEND


def accelerate_engine(config: str | None = None) -> Engine:
    """The engine.

    Args:
        config: a file of `accelerate config`, a path in the code tree; None: each node's default, if any.
    """
    return Engine(
        "accelerate",
        script=None,
        argv=partial(accelerate, config),
        remains=REMAINS,
        python_files=rendezvous_files(),
        variables=_variables,
        packages=("accelerate",),
        cpu_variable="ACCELERATE_USE_CPU",  # without it each rank would train alone there
        files=() if config is None else (config,),
    )


def check_config(path: str, text: str) -> None:
    """Raises UsageError if `accelerate launch` runs no torchrun with this config file (accelerate 1.15)."""
    found = re.search(r"^distributed_type:[ \t]*['\"]?(\w+)", text, re.MULTILINE)
    if found and found[1] in ("NO", "MULTI_CPU"):
        raise UsageError(
            f"{path}: with distributed_type {found[1]}, accelerate starts no torchrun",
            fix="leave out --accelerate-config; on hosts without GPUs: --env ACCELERATE_USE_CPU=true",
        )


def accelerate(config: str | None, node: NodeRole) -> list[str]:
    """The argv of one node's `accelerate launch` (accelerate 1.15, `commands/launch.py`).

    With `--multi_gpu` it runs `torch.distributed.run`, on hosts without GPUs too (with `--cpu` it would run
    mpirun, or one process only). With a config file, that one decides, so nothing is forced. Options of
    torchrun that it has no own ones for come from PET_* variables: see `_variables`. It divides the number of
    processes by that of machines, and starts no torchrun for a single process.

    Raises NeverStarted: it cannot start such a job.
    """
    program = node.program
    counts = {member.nproc for member in node.members}
    if len(counts) > 1:
        raise NeverStarted(
            "accelerate starts the same number of processes on each node, and these have "
            + ", ".join(f"{member.nproc} ({member.host})" for member in node.members),
            fix="use --nproc, or --engine fsdp, which runs the same scripts",
        )
    if node.world_size < 2:
        raise NeverStarted(
            "accelerate starts no torchrun for a single process",
            fix="use --nproc 2, or --engine fsdp, which runs the same scripts",
        )
    if program.args and program.args[0] in ("", "-"):
        # Its `_filter_args` hands the list of arguments to argparse as if it were one word.
        raise NeverStarted(
            f"accelerate cannot pass on {program.args[0]!r} as the first argument",
            fix="pass another argument first, or use --engine fsdp, which runs the same scripts",
        )
    binds = (f"--rdzv_backend={BACKEND}", f"--rdzv_conf=rank={node.node_rank}")
    return [
        *node.python,
        "-m",
        "accelerate.commands.launch",
        *(["--multi_gpu"] if config is None else [f"--config_file={config}"]),
        "--deepspeed_multinode_launcher=standard",  # torchrun, too, if the config file has DeepSpeed
        f"--num_machines={node.nodes}",
        f"--machine_rank={node.node_rank}",
        f"--num_processes={node.world_size}",
        f"--main_process_ip={node.master_addr}",
        f"--main_process_port={node.master_port}",
        *(binds if node.binds_store else ("--rdzv_backend=static", "--same_network")),
        "--max_restarts=0",
        "--tee=3",
        f"--log_dir={node.ranks}",
        *(["--module"] if program.module else []),
        "--",
        literal(program.path),
        *map(literal, program.args),
    ]


def _variables(node: NodeRole) -> dict[str, str]:
    """What torchrun's parser of arguments reads (torch 2.13, `argparse_util.env`)."""
    endpoint = {"PET_RDZV_ENDPOINT": f"{node.master_addr}:{node.master_port}"} if node.binds_store else {}
    return {"PET_LOCAL_ADDR": node.local_addr, **endpoint}


ENGINE = accelerate_engine()
