"""What `mnt preflight --deep` runs on every host, under torchrun: sums of ones, checked and timed.

It is sent along, not imported by `mnt`: it needs the host's torch. The one argument is a mark; each line of
JSON that is meant for `mnt` follows it. NCCL where there are GPUs, gloo where there are none.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from typing import Any

BYTES = {"gloo": (1 << 12, 1 << 20, 1 << 24), "nccl": (1 << 12, 1 << 20, 1 << 24, 1 << 28)}
ROUNDS = 5
PATIENCE = datetime.timedelta(seconds=60)


def say(**fields: Any) -> None:
    print(sys.argv[1] + json.dumps(fields), flush=True)


def main() -> None:
    start = time.monotonic()
    import torch
    import torch.distributed as dist

    backend = "nccl" if torch.cuda.is_available() else "gloo"
    say(event="imported", torch=torch.__version__, seconds=time.monotonic() - start, backend=backend)
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=PATIENCE)
    world = dist.get_world_size()

    def all_reduce(size: int) -> tuple[float, float]:
        """(seconds, the element of the sum that is farthest from what it should be)."""
        ones = torch.ones(size // 4, dtype=torch.float32, device=device)
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(ones)
        if device.type == "cuda":
            torch.cuda.synchronize()
        took = time.perf_counter() - began
        return took, float(ones[(ones - world).abs().argmax()])

    for size in BYTES[backend]:
        all_reduce(size)  # the first one makes connections
        rounds = [all_reduce(size) for _ in range(ROUNDS)]
        wrong = [value for _, value in rounds if value != world]
        if wrong:
            say(event="wrong", bytes=size, sum=wrong[0], expected=world)
        if dist.get_rank() == 0:
            say(event="measured", bytes=size, seconds=sorted(took for took, _ in rounds)[ROUNDS // 2])
    dist.barrier()
    dist.destroy_process_group()
    say(event="done", world=world)


if __name__ == "__main__":
    main()
    # gloo's threads abort an interpreter's ordinary exit now and then.
    sys.stdout.flush()
    os._exit(0)
