"""Facts that fill each list to its bound: the head takes seconds for those of one host, and of 16.

The largest list of each kind that is accepted, whichever bound is the first: bytes and values of an answer
(mnt/tasks/bounds.py), or a length in the types (mnt/facts/).
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from test_fuzz_facts import inventory, rich

from mnt.errors import HostError
from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.init.training import propose
from mnt.inventory.model import Host
from mnt.network.decision import decide
from mnt.network.overview import network_overview
from mnt.preflight.registry import all_checks
from mnt.preflight.report import run_checks
from mnt.tasks.bounds import bound_of, problem_of

pytestmark = pytest.mark.one_python

Document = dict[str, Any]
SECONDS = 20.0  # for a slow machine that others use: most take less than one


def nic(name: str, *addresses: str, **more: Any) -> Document:
    return {"name": name, "up": True, "carrier": True, "mtu": 1500, "ipv4": addresses, **more}


def ip(number: int, host: int = 1) -> str:
    """In another /24 for each number."""
    return f"{10 + (number >> 16)}.{number >> 8 & 255}.{number & 255}.{host}"


def nics(count: int, host: int, of_each: int, length: int = 24, **more: Any) -> Document:
    numbers = iter(range(count * of_each))
    names = (f"e{number}" for number in range(count))
    each = [
        nic(name, *(f"{ip(next(numbers), host)}/{length}" for _ in range(of_each)), **more) for name in names
    ]
    return {"interfaces": each}


def rdma(count: int, ports: int, gids: int, **more: Any) -> Document:
    gid = "0000:0000:0000:0000:0000:ffff:0a00:{:02x}{:02x}"
    table = [
        {"index": n, "gid": gid.format(n >> 8 & 255, n & 255), "type": "RoCE v2", "netdev": "eth1"}
        for n in range(gids)
    ]
    each = [
        {"number": n, "state": "ACTIVE", "link_layer": "Ethernet", "gids": table} for n in range(1, ports + 1)
    ]
    devices = [{"name": f"mlx5_{n}", "netdevs": ["eth1"], "ports": each} for n in range(count)]
    return {**nics(1, 1, 1), "rdma": {"devices": devices, **more}}


def gpus(**lists: Any) -> Document:
    return {"gpus": {"tool": "/usr/bin/nvidia-smi", **lists}}


PYTHON = {"argv": ["python3"], "configured": True, "version": "3.11.2", "executable": "/p"}
MOUNT = {"point": "/shared", "source": "a:/b", "type": "nfs4", "options": ["rw"]}
JOB = "20261129-084500-3fa90c"

# What a list is filled with, from the number of its elements and that of the host.
FILLS: dict[str, Callable[[int, int], Document]] = {
    "NICs": lambda n, host: nics(n, host, 1),
    "NICs of 60 addresses": lambda n, host: nics(n, host, 60),
    "NICs of point-to-point links": lambda n, host: nics(n, host, 60, 32),
    "NICs in one network": lambda n, host: {
        "interfaces": [nic(f"e{i}", f"10.0.{i >> 8}.{i & 255}/8") for i in range(n)]
    },
    "addresses": lambda n, host: nics(1, host, n),
    "addresses from the other end": lambda n, host: {
        "interfaces": [nic("e", *(f"{ip(n - i, host)}/24" for i in range(n)))]
    },
    "IPv6 addresses": lambda n, host: nics(1, host, 1, ipv6=[f"fd00::{i:x}/64" for i in range(n)]),
    "other names of a NIC": lambda n, host: nics(1, host, 1, altnames=[f"a{i}" for i in range(n)]),
    "own addresses": lambda n, host: {
        **nics(n, host, 60),
        "resolved": {"addresses": [f"9.0.{i >> 8 & 255}.{i & 255}" for i in range(60)]},
    },
    "networks of all lengths": lambda n, host: {
        "interfaces": [
            nic(f"e{j}", *(f"10.{j}.{i}.{host}/{(j * 60 + i) % 33}" for i in range(60))) for j in range(n)
        ]
    },
    "resolved": lambda n, host: {
        **nics(64, host, 60),
        "resolved": {"addresses": [f"9.0.{i >> 8 & 255}.{i & 255}" for i in range(n)]},
    },
    "RDMA devices": lambda n, host: rdma(n, 1, 1),
    "RDMA ports": lambda n, host: rdma(1, n, 1),
    "RDMA GIDs": lambda n, host: rdma(1, 1, n),
    "RDMA devices of many ports": lambda n, host: rdma(n, 8, 8),
    "lowers": lambda n, host: rdma(1, 1, 1, lowers={f"b{i}": [f"b{i + 1}", "b0"] for i in range(n)}),
    "lowers of lowers": lambda n, host: rdma(
        1, 1, 1, lowers={f"b{i}": [f"b{j}" for j in range(60)] for i in range(n)}
    ),
    "packages": lambda n, host: {"packages": {f"p{i}": "1" for i in range(n)}},
    "NCCL packages": lambda n, host: {"packages": {f"nvidia-nccl-{i}": f"2.{i}" for i in range(n)}},
    "paths": lambda n, host: {"paths": {f"/p{i}": {"kind": "dir"} for i in range(n)}},
    "mounts": lambda n, host: {"mounts": {f"/p{i}": {"stack": [], "inside": MOUNT} for i in range(n)}},
    "mounts on each other": lambda n, host: {"mounts": {"/shared": {"stack": [MOUNT] * n, "inside": None}}},
    "options of a mount": lambda n, host: {
        "mounts": {"/shared": {"stack": [{**MOUNT, "options": [f"o{i}" for i in range(n)]}], "inside": None}}
    },
    "writes": lambda n, host: {
        "writes": [{"path": f"/p{i}", "directory": f"/p{i}", "result": "ENOSPC"} for i in range(n)]
    },
    "levels of where /tmp is": lambda n, host: {
        "paths": {"/tmp": {"kind": "dir", "real": "/s" + "/a" * n}, "~": {"kind": "dir", "real": "/s" * n}}
    },
    "levels of a place to write": lambda n, host: {
        "paths": {"/tmp": {"kind": "dir", "real": "/s"}},
        "writes": [{"path": "/", "directory": "/s" + "/a" * n, "result": "ENOSPC"}],
    },
    "listeners": lambda n, host: {"listeners": [{"address": ip(i), "uid": i, "job": JOB} for i in range(n)]},
    "GPUs": lambda n, host: gpus(found=[{"index": str(i), "uuid": f"GPU-{i}"} for i in range(n)]),
    "rows of GPUs": lambda n, host: gpus(
        found=[{"index": "0"}],
        rows=[{"gpu_uuid": f"GPU-{i}", "remapped_rows.pending": "1"} for i in range(n)],
    ),
    "processes of GPUs": lambda n, host: gpus(
        found=[{"index": str(i), "uuid": f"GPU-{i}"} for i in range(n // 2)],
        processes=[{"gpu_uuid": f"GPU-{i}", "pid": str(i)} for i in range(n)],
    ),
    "GPUs on the bus": lambda n, host: gpus(on_bus=[f"0000:{i:02x}:00.0" for i in range(n)]),
    "kernel log": lambda n, host: gpus(
        found=[{"index": str(i), "pci.bus_id": f"{i:08x}:00:00.0"} for i in range(min(n, 500))],
        kernel_log={"lines": [{"age": 1, "text": f"NVRM: Xid (PCI:{i:04x}:00:00): 79"} for i in range(n)]},
    ),
    "links of GPUs": lambda n, host: gpus(
        found=[{"index": "0"}], links="\n".join(f"GPU {i}: x\n\t Link {i}: <inactive>" for i in range(n))
    ),
    "settings of logind": lambda n, host: {
        "logind": {"booted": True, "settings": {f"K{i}": "1" for i in range(n)}}
    },
    "zombies": lambda n, host: {
        "processes": {"zombies": [{"parent": i, "command": "x", "count": 99} for i in range(n)]}
    },
    "leftovers": lambda n, host: {
        "processes": {"leftovers": [{"job": f"{JOB}{i}", "pids": [i], "command": "x"} for i in range(n)]}
    },
    "pids of a leftover": lambda n, host: {
        "processes": {"leftovers": [{"job": JOB, "pids": list(range(n)), "command": "x"}]}
    },
    "locks": lambda n, host: {
        "artifacts": {"release": {}, "locks": [{"path": f"/x/{i}/lock", "age": 999} for i in range(n)]}
    },
    "exposed": lambda n, host: {
        "artifacts": {"release": {}, "exposed": [{"message": f"m{i}", "fix": "f"} for i in range(n)]}
    },
    "files of NCCL": lambda n, host: {
        **nics(1, host, 1),
        "nccl_conf": [{"path": f"/{i}", "text": f"NCCL_{i}=1"} for i in range(n)],
    },
    "lines of NCCL": lambda n, host: {
        **nics(1, host, 1),
        "nccl_conf": [{"path": "/x", "text": "\n".join(f"NCCL_{i}=1" for i in range(n))}],
    },
    "NICs that NCCL shall use": lambda n, host: {
        **nics(200, host, 1),
        "nccl_conf": [{"path": "/x", "text": f"NCCL_SOCKET_IFNAME={'x,' * n}"}],
    },
    "RDMA ports that NCCL shall use": lambda n, host: {
        **rdma(100, 2, 1),
        "nccl_conf": [{"path": "/x", "text": f"NCCL_IB_HCA={'x,' * n}"}],
    },
    "words of Python": lambda n, host: {"python": {**PYTHON, "argv": ["-a"] * n}},
    "PATH": lambda n, host: {
        "session": {"umask": 0, "path": ":".join(f"/{i}" for i in range(n)), "nofile": 1, "memlock": 1}
    },
    "noise": lambda n, host: {"noise": "x\n" * n},
}


def document(fill: str, count: int, host: int) -> Document:
    return {"hostname": f"h{host}", "python": PYTHON, **FILLS[fill](count, host)}


def accepted(fill: str, count: int) -> bool:
    found = document(fill, count, 1)
    text, bound = json.dumps(found, separators=(",", ":")).encode(), bound_of("probe.probe")
    if len(text) > bound.size or problem_of(text, bound) is not None:
        return False
    try:
        HostFacts.parse("liar", json.loads(text))
    except HostError:
        return False
    return True


@cache
def most(fill: str) -> int:
    """The number of elements of the largest such list that the head accepts."""
    low, high = 1, 2
    while accepted(fill, high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepted(fill, middle) else (low, middle)
    return low


@pytest.mark.parametrize("liars", [1, pytest.param(16, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("fill", FILLS)
def test_a_full_list(fill: str, liars: int) -> None:
    count = most(fill)
    names = [f"liar{number}" for number in range(1, liars + 1)]
    facts = {
        name: HostFacts.parse(name, json.loads(json.dumps(document(fill, count, number))))
        for number, name in enumerate(names, 1)
    }
    honest = {f"node{number}": rich(number) for number in (17, 18)}
    started = time.process_time()
    for order in ({**facts, **honest}, {**honest, **facts}):
        hosts = tuple(Host(name, name) for name in order)
        cluster = replace(inventory(random.Random(1)), hosts=hosts)
        cluster = replace(cluster, network=replace(cluster.network, subnet=None, nic=None))
        fleet = FleetFacts(cluster, hosts, order, {})
        network = decide(fleet)
        run_checks(fleet, network, all_checks())
        network_overview(fleet, network)
        propose(order, {name: ip(0, number) for number, name in enumerate(order)}, {})
    assert time.process_time() - started < SECONDS
