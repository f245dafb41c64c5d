"""The trial of `--deep`, run on every host under torchrun: sums of ones, checked and timed.

It is sent to the hosts, not imported by `mnt`, because it needs the host's torch. Its only argument is a
prefix, which precedes each line of JSON for `mnt`. It uses NCCL if there are GPUs, otherwise gloo.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import sys
import time
from collections.abc import Container
from typing import Any, NoReturn

from mnt.remote.common.files import entries, read, unix_lines
from mnt.remote.common.sockets import LISTEN, numeric

BYTES = {"gloo": (1 << 12, 1 << 20, 1 << 24), "nccl": (1 << 12, 1 << 20, 1 << 24, 1 << 28)}
ROUNDS = 5
PATIENCE = datetime.timedelta(seconds=60)
ESTABLISHED = "01"  # TCP_ESTABLISHED of the kernel's net/tcp_states.h, as /proc/net/tcp prints it


def say(**fields: Any) -> None:
    print(sys.argv[1] + json.dumps(fields), flush=True)


def connections(table: str, own: Container[str], rendezvous: int) -> set[tuple[str, str]]:
    """(local address, peer's address) of a /proc/net/tcp or tcp6; the latter is empty if the socket listens.

    Args:
        own: inodes of the sockets to include.
        rendezvous: the port whose sockets are not included, on either side.
    """
    found = set()
    for line in unix_lines(table)[1:]:
        fields = line.split()
        (local, local_port), (peer, peer_port) = (end.split(":") for end in fields[1:3])
        ours = fields[9] in own and rendezvous not in (int(local_port, 16), int(peer_port, 16))
        if ours and fields[3] in (ESTABLISHED, LISTEN):
            found.add((_address(local), "" if fields[3] == LISTEN else _address(peer)))
    return found


def _address(text: str) -> str:
    """`0100007F` as 127.0.0.1. Mapped IPv4 becomes IPv4."""
    address = ipaddress.ip_address(numeric(text))
    return str(getattr(address, "ipv4_mapped", None) or address)


def say_sockets() -> None:
    """Print the addresses on which this process listens or is connected."""
    links = []
    for descriptor in entries("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:  # the descriptor of the listing itself
            continue
    own = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    rendezvous = int(os.environ["MASTER_PORT"])
    found = [connections(read(f"/proc/net/{name}"), own, rendezvous) for name in ("tcp", "tcp6")]
    say(event="sockets", connections=sorted(set().union(*found)))


def main(arguments: list[str]) -> NoReturn:
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
        """(seconds, the element of the sum that is farthest from the correct value)."""
        ones = torch.ones(size // 4, dtype=torch.float32, device=device)
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(ones)
        if device.type == "cuda":
            torch.cuda.synchronize()
        took = time.perf_counter() - began
        return took, float(ones[(ones - world).abs().argmax()])

    dist.barrier()
    if backend == "gloo":
        say_sockets()
    for size in BYTES[backend]:
        all_reduce(size)  # the first one opens connections
        rounds = [all_reduce(size) for _ in range(ROUNDS)]
        wrong = [value for _, value in rounds if value != world]
        if wrong:
            say(event="wrong", bytes=size, sum=wrong[0], expected=world)
        if dist.get_rank() == 0:
            say(event="measured", bytes=size, seconds=sorted(took for took, _ in rounds)[ROUNDS // 2])
    dist.barrier()
    dist.destroy_process_group()
    say(event="done", world=world)
    os._exit(0)  # gloo's threads sometimes abort an ordinary exit of the interpreter
