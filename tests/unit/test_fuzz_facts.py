"""Fuzzed facts of one host of several, through everything that is made of them. See tests/fuzzing.py."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from functools import cache
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from fleets import healthy
from fuzzing import mutated, run_cases, sent
from network_facts import infiniband, roce, table
from test_checks_gpus import gpus

from mnt import ui
from mnt.cli.net import _show
from mnt.cli.preflight_view import show_changes, show_report
from mnt.errors import HostError
from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts, Listener, Mounted, MountPoint, PathFacts, Traffic
from mnt.facts.nccl import ConfFile
from mnt.facts.rdma import RdmaFacts
from mnt.facts.system import Leftover, LogLine, Ofed, OwnProcesses, Zombies
from mnt.inventory.model import Host, Inventory, Mount, Network, RequiredPath
from mnt.network.decision import decide
from mnt.network.overview import network_overview
from mnt.preflight.output.junit import as_junit
from mnt.preflight.output.page import as_page
from mnt.preflight.registry import all_checks
from mnt.preflight.report import changes, run_checks
from mnt.preflight.trips import exchanges, training_nics
from mnt.remote.probe import probe
from mnt.tasks.bootstrap import BadFrame

NAMES = ("node1", "node2", "node3", "node4")
LIAR = "node2"
PYTHON = ("/shared/env/bin/python",)


def rich(number: int) -> HostFacts:
    """A host that has something of everything."""
    name, address = f"eth{number}", f"10.0.0.{number}"
    facts = healthy(number)
    interfaces = tuple(
        replace(nic, traffic=Traffic(10**6, 10**6), speed=100000, ipv6=()) for nic in facts.interfaces
    )
    mounted = Mounted("/shared", "10.0.0.9:/export", "nfs4", ("rw", "vers=4.2", "addr=10.0.0.9"))
    process = {"gpu_uuid": "GPU-1", "pid": "7", "used_gpu_memory": "9 MiB", "process_name": "python"}
    seen = gpus({"gpu_recovery_action": "Reset", "memory.used": "9000 MiB"}, processes=[process])["gpus"]
    xid = LogLine(60.0, "NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.")
    return replace(
        facts,
        interfaces=interfaces,
        rdma=RdmaFacts(
            (roce("mlx5_0", name, table(name, address)), infiniband("mlx5_1", "ib0")),
            {"bond0": (name,), "vlan7": ("bond0",)},
            open_driver=True,
        ),
        gpus=replace(seen, kernel_log=replace(seen.kernel_log, lines=(xid,)), on_bus=("0000:41:00.0",)),
        mounts={"/shared": MountPoint((mounted,), None)},
        paths={
            "/shared": PathFacts("dir", "/shared", write="ok"),
            "/tmp": PathFacts("dir"),
            "~": PathFacts("dir"),
        },
        listeners=(Listener("0.0.0.0", 1000, "ubuntu", 4242, "python"),),
        processes=OwnProcesses((Zombies(1, "init", 3),), (Leftover("j1", (7, 8), "python"),), compiling=True),
        nccl_conf=(ConfFile("/etc/nccl.conf", "NCCL_DEBUG=INFO\nNCCL_IB_GID_INDEX=3\nNCCL_HOSTID=x\n"),),
        nccl_library="2.28.9",
        torch_cuda="13.0",
        packages={"torch": "2.13.0+cu130", "nvidia-nccl-cu13": "2.28.9", "deepspeed": "0.19.0"},
        ofed=Ofed("1.14.39.0"),
        noise="welcome\n",
        attempts="python3",
    )


@cache
def real() -> dict[str, Any]:
    """The probe's answer on this machine."""
    asked = {
        "paths": ["/tmp", "~"],
        "mounts": ["/", "/shared"],
        "port": 29500,
        "packages": ["torch", "pytest"],
    }
    answer: dict[str, Any] = json.loads(json.dumps(probe.main(asked, lambda frame: None, sys.stdin.buffer)))
    return answer


@cache
def made_up() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(msgspec.json.encode(rich(2)))
    return document


def inventory(rng: random.Random) -> Inventory:
    hosts = tuple(
        Host(name, name, python=PYTHON, gpus=2, nic=rng.choice((None, None, "eth2"))) for name in NAMES
    )
    network = Network(
        mode=rng.choice(("auto", "tcp", "rdma")),
        subnet=rng.choice(("10.0.0.0/24", None)),
        nic=rng.choice((None, "eth2")),
    )
    storage = (
        Mount("/shared", rng.choice(("nfs", "nfs4", None)), rng.choice((None, "10.0.0.9:/export")), ("rw",)),
        Mount("/"),
    )
    pins = {"torch": "==2.13.*", "python": ">=3.11", "kernel": ">=5", "os-release": "==12", "driver": ">=550"}
    return Inventory(
        *("test", "test.yaml", hosts),
        network=network,
        storage=storage,
        paths=(RequiredPath("/tmp", "dir"),),
        require=rng.choice(({}, pins)),
    )


def wrong(rng: random.Random) -> Any:
    """An answer that is wrong anywhere, or in one part: so small parts get their share of the mistakes."""
    document = rng.choice((real(), made_up()))
    if rng.random() < 0.5:
        return mutated(rng, document)
    part = rng.choice(list(document))
    return {**document, part: mutated(rng, document[part])}


def lies(rng: random.Random) -> tuple[dict[str, HostFacts], dict[str, HostError]]:
    """Facts and errors by host: those of the liar are what the head makes of its answer."""
    facts = {name: rich(number) for number, name in enumerate(NAMES, 1) if name != LIAR}
    try:
        return {**facts, LIAR: HostFacts.parse(LIAR, sent(wrong(rng)))}, {}
    except BadFrame as error:
        return facts, {LIAR: HostError(LIAR, "answer", str(error))}
    except HostError as error:
        return facts, {LIAR: error}


def everything(rng: random.Random, fleet: FleetFacts, capsys: pytest.CaptureFixture[str]) -> None:
    """All that preflight and net make of facts; the slowest of it only now and then."""
    network = decide(fleet)
    training_nics(fleet, network)
    list(exchanges(fleet))
    report = run_checks(fleet, network, all_checks())
    assert {report.status(name) for name in NAMES} <= {"ok", "warn", "fail", "unreachable"}
    ui.document(report.document())
    show_report(report, 1.0)
    show_changes(changes(report, run_checks(fleet, network, ())), report)
    overview = network_overview(fleet, network)
    ui.document(overview.document())
    _show(overview)
    for node in overview.nodes.values():
        node.shell()
    capsys.readouterr().out.encode()
    if rng.random() < 0.3:
        ElementTree.fromstring(as_junit(report, 1.0))
        ui.readable(as_page(report, written="now", seconds=1.0)).encode()


def test_fuzz_facts(capsys: pytest.CaptureFixture[str]) -> None:
    def case(rng: random.Random) -> None:
        facts, errors = lies(rng)
        assert {(error.host, error.phase) for error in errors.values()} <= {(LIAR, "answer")}
        cluster = inventory(rng)
        everything(rng, FleetFacts(cluster, cluster.hosts, facts, errors), capsys)

    run_cases("fuzz_facts", case)
