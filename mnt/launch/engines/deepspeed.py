"""DeepSpeed, started by torchrun, or by the part of DeepSpeed's own launcher that runs on a node.

What DeepSpeed's own launcher does for a script (0.19: `launch.py`, `runner.py`) is done by torchrun's engine
too: each rank gets `--local_rank=N`, and the variables in `.deepspeed_env`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace

from mnt.errors import NeverStarted, counted
from mnt.launch.engines.api import Engine, NodeRole
from mnt.launch.engines.slots import slots, slots_files
from mnt.launch.engines.torchrun import torchrun_engine


def _env_file(caller: Mapping[str, str]) -> str:
    return caller.get("DS_ENV_FILE", ".deepspeed_env")


def launch(node: NodeRole) -> list[str]:
    """The argv of one node's `deepspeed.launcher.launch` (DeepSpeed 0.19), under a program of ours.

    With `--enable_each_rank_log`, each rank has a log of its own, and nothing of it is printed: ours prints
    it, and notes which rank failed, which DeepSpeed does not say.

    `--world_info` names, for each node, the devices that become CUDA_VISIBLE_DEVICES of all its ranks. Other
    nodes' devices do not matter to a node, only how many there are.

    Raises NeverStarted: CUDA_VISIBLE_DEVICES has fewer devices than the node has processes.
    """
    world = {member.host: list(range(member.nproc)) for member in node.members}
    own = world[node.members[node.node_rank].host]
    devices: list[int] | list[str] = own if node.devices is None else node.devices.split(",")[: node.nproc]
    if len(devices) < node.nproc:
        raise NeverStarted(
            f"CUDA_VISIBLE_DEVICES={node.devices} has {counted(len(devices), 'device')} "
            f"for {node.nproc} processes, and DeepSpeed's launcher gives each one of its own",
            fix="use --nproc, or leave out --deepspeed-launcher",
        )
    named = {**world, node.members[node.node_rank].host: devices}
    program = node.program
    words = [
        f"--world_info={base64.urlsafe_b64encode(json.dumps(named).encode()).decode()}",
        f"--node_rank={node.node_rank}",
        f"--master_addr={node.master_addr}",
        f"--master_port={node.master_port}",
        f"--enable_each_rank_log={node.ranks}",
        *(["--module"] if program.module else []),
        *([] if program.local_rank else ["--no_local_rank"]),
        "--",  # argparse would refuse arguments of the program's that may abbreviate several of its options
        program.path,
        *program.args,
    ]
    return slots(node, "deepspeed", words=words)


ENGINE = torchrun_engine("deepspeed", script="train/train_deepspeed.py", local_rank=True, env_file=_env_file)

LAUNCHER: Engine = replace(
    ENGINE,
    argv=launch,
    remains="deepspeed",
    python_files=slots_files(),
    packages=("deepspeed",),
    listens=False,
    open_store=True,
)
