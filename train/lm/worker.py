"""This process as a rank of a job: join the process group, agree with the other ranks, leave."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from lm.errors import TrainingError
from lm.gpus import missing_gpus

INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@dataclass(frozen=True)
class Worker:
    """One process of the job, one device. `leads_node` is true for one worker of each node."""

    rank: int
    local_rank: int
    world_size: int
    host: str
    device: torch.device
    backend: str

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def leads_node(self) -> bool:
        return self.local_rank == 0


def join(timeout_minutes: float) -> Worker:
    """Joins the process group that torchrun's environment describes: NCCL on GPUs, gloo on CPUs.

    Args:
        timeout_minutes: how long a rank waits for the others, here and later in every collective.

    Raises:
        TrainingError: the process was not started by torchrun, or it lacks the GPU that it was promised.
    """
    try:
        rank, local_rank, world_size = (int(os.environ[k]) for k in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    except KeyError as missing:
        raise TrainingError(
            f"{missing} is not set: start this script with `mnt launch` or torchrun"
        ) from None
    on_gpu = torch.cuda.is_available()
    seen = torch.cuda.device_count() if on_gpu else 0
    problem = missing_gpus(int(os.environ.get("MNT_GPUS", "0")), seen, local_rank, torch.__version__)
    if problem is not None:
        raise TrainingError(f"{socket.gethostname()}: {problem}")
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    worker = Worker(rank, local_rank, world_size, socket.gethostname(), device, "nccl" if on_gpu else "gloo")
    if on_gpu:
        torch.cuda.set_device(device)
    interfaces = " ".join(f"{name}={os.environ.get(name, '(unset)')}" for name in INTERFACES)
    name = f"{device} ({torch.cuda.get_device_name(device)})" if on_gpu else str(device)
    print(f"{worker.host}: rank {rank} of {world_size}, {name}, {worker.backend}, {interfaces}", flush=True)
    dist.init_process_group(
        worker.backend, timeout=timedelta(minutes=timeout_minutes), device_id=device if on_gpu else None
    )
    return worker


def agree(problem: str | None) -> None:
    """Ends the job on all ranks if any rank has a problem, so that no rank waits for another forever.

    Raises:
        TrainingError: on every rank, with the problems of all.
    """
    problems: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    unique = list(dict.fromkeys(text for text in problems if text))
    if unique:
        raise TrainingError("; ".join(unique), on_all_ranks=True)


def run(main: Callable[[], None]) -> NoReturn:
    """Runs `main` as the whole program, and exits.

    `record` writes an exception to torchrun's error file. A TrainingError is printed in one line, any other
    exception with its traceback.
    """
    code = 1
    try:
        record(main)()
        code = 0
    except TrainingError as error:
        if not error.on_all_ranks or os.environ.get("RANK") == "0":
            print(f"error: {error}", file=sys.stderr)
    except Exception:  # noqa: BLE001  no exception may reach the interpreter's own exit: see _exit
        traceback.print_exc()
    _exit(code)


def leave() -> None:
    """Waits until every rank is done, so that no rank loses a peer during its last collective."""
    dist.barrier()
    dist.destroy_process_group()


def _exit(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # With gloo (torch 2.13 and 2.14) the interpreter's own exit sometimes aborts after all work is done:
    # "terminate called without an active exception", SIGABRT. The job would count as failed: skip that exit.
    os._exit(code)
