"""`mnt run` against its peers: one command on many lab hosts, side by side in one run.

    python -m venv PEERS && PEERS/bin/pip install asyncssh ansible-core ClusterShell
    sudo python benchmarks/fanout.py --peers PEERS

Needs root and pdsh. Prints tables and writes benchmarks/results/fanout.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import peers
from machine import describe, environment
from peers import Peer

from mnt.fleet import Fleet, HostConnection
from mnt.inventory import loader
from mnt.lab import Lab, LabRequest
from mnt.tasks.job import NodeSpec, start_node

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "fanout.json"
sys.path.append(str(ROOT / "tests" / "lab"))

import faults  # noqa: E402 - the tests' ways to break a host

COMMAND = "hostname"
CONNECT_TIMEOUT = 2.0  # seconds
GOALS = {"asyncssh, bare": 1 / 1.25, "pdsh": 2.0, "clush": 3.0, "ansible raw": 3.0}


class Run(NamedTuple):
    seconds: float  # wall time, the start of the process included
    cpu: float  # seconds of it and its children
    memory: float  # MiB, the peak of the largest process


def main() -> None:
    options = argparse.ArgumentParser(description="Benchmark of mnt run on lab hosts.")
    options.add_argument("--peers", type=Path, required=True, help="venv with the peers")
    options.add_argument("--rounds", type=int, default=7, help="all in turn, again and again; medians count")
    asked = options.parse_args()
    result: dict[str, Any] = {
        "machine": describe("fabric", "paramiko"),
        "versions": peers.versions(asked.peers),
        "rounds": asked.rounds,
    }
    with tempfile.TemporaryDirectory() as scratch:
        result |= with_lab(64, lambda lab: side_by_side(lab, asked, Path(scratch)))
    result |= with_lab(64, lambda lab: status(lab, asked.rounds))
    result |= with_lab(64, lambda lab: with_bad_hosts(lab, asked.rounds))
    result |= with_lab(256, lambda lab: many_hosts(lab, asked.rounds))
    result["mnt --help"] = round(statistics.median(_helps(asked.rounds)), 3)
    print(f"\nmnt --help: {result['mnt --help'] * 1000:.0f} ms (goal: 150)")
    per_host = result["64 hosts"]["mnt run"]["seconds"] / 64
    many = result["256 hosts"]
    print(
        f"256 hosts: {many['seconds'] / 256 * 1000:.1f} ms a host, {per_host * 1000:.1f} at 64; "
        f"{many['memory']} MiB (goal: 400)"
    )
    result["machine"]["load_at_the_end"] = round(os.getloadavg()[0], 1)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


def with_lab(count: int, measure: Callable[[Lab], dict[str, Any]]) -> dict[str, Any]:
    lab = Lab.up(LabRequest(name=f"run-bench-{os.getpid()}", count=count))
    try:
        return measure(lab)
    finally:
        lab.down()


def side_by_side(lab: Lab, asked: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """The same command by every peer, in turn, so that a busy minute of the machine's hits them all."""
    there = peers.commands(lab, asked.peers, scratch, COMMAND)
    rounds = [{name: run(peer) for name, peer in there.items()} for _ in range(asked.rounds)]
    medians = {name: _median([each[name] for each in rounds]) for name in there}
    ours = medians["mnt run"].seconds
    print(f"{'64 hosts':18} {'seconds':>8} {'CPU':>6} {'MiB':>6}  times mnt run, and the goal")
    for name, median in medians.items():
        goal = f"{median.seconds / ours:6.2f}  {GOALS[name]:.2f}" if name in GOALS else ""
        print(f"{name:18} {median.seconds:8.2f} {median.cpu:6.2f} {median.memory:6.0f}  {goal}")
    return {
        "64 hosts": {name: _rounded(median) for name, median in medians.items()},
        "times mnt run": {name: round(medians[name].seconds / ours, 2) for name in GOALS},
    }


def status(lab: Lab, rounds: int) -> dict[str, Any]:
    """`mnt status` beside `mnt run`, without a job and with one that runs on each host."""
    mnt = [sys.executable, "-m", "mnt"]
    ask = Peer([*mnt, "status", "-i", str(lab.inventory_path)])
    fan_out = Peer([*mnt, "run", "-i", str(lab.inventory_path), "--", COMMAND])
    free = [(run(fan_out), run(ask)) for _ in range(rounds)]
    with Fleet(loader.load(lab.inventory_path).hosts) as fleet:
        started = fleet.run(start_sleeper)
    if started.errors():
        sys.exit(f"no job: {next(iter(started.errors().values()))}")
    busy = [(run(fan_out), run(ask)) for _ in range(rounds)]
    found = {}
    for name, pairs in (("no job", free), ("a job on each host", busy)):
        alone, asked = (_median([pair[which] for pair in pairs]).seconds for which in (0, 1))
        print(f"mnt status, {name}: {asked:.2f} s; mnt run {alone:.2f} s (goal: 0.25 s more)")
        found[name] = {"mnt run": round(alone, 2), "mnt status": round(asked, 2)}
    return {"mnt status, 64 hosts": found}


def start_sleeper(connection: HostConnection) -> None:
    """Start a job of this host's own that sleeps; it ends with the lab."""
    host = connection.target.name
    spec: NodeSpec = {
        "format": 1,
        "job": f"sleeper-{host}",
        "host": host,
        "node_rank": 0,
        "nodes": [{"host": host, "node_rank": 0, "nproc": 1}],
        "engine": "fsdp",
        "release": None,
        "cwd": "/tmp",
        "argv": ["sleep", "1000"],
        "env": {},
        "jobs_dir": connection.target.jobs_dir,
        "master": {"addr": "127.0.0.1", "port": 29500},
    }
    start_node(connection, spec)


def with_bad_hosts(lab: Lab, rounds: int) -> dict[str, Any]:
    """Two hosts that are gone, and two that accept connections and say nothing."""
    bad = [lab.host(f"node{number}") for number in (7, 23, 42, 64)]
    for host in bad[:2]:
        faults.power_off(host)
    for host in bad[2:]:
        faults.silence_sshd(host)
    mnt = [sys.executable, "-m", "mnt", "run", "-i", str(lab.inventory_path)]
    limit = ["--connect-timeout", str(CONNECT_TIMEOUT)]
    healthy = Peer([*mnt, "-x", ",".join(host.name for host in bad), "--", COMMAND])
    times = [(run(healthy), run(Peer([*mnt, *limit, "--", COMMAND]), code=255)) for _ in range(rounds)]
    alone, together = (_median([pair[which] for pair in times]).seconds for which in (0, 1))
    print(
        f"\n60 hosts: {alone:.2f} s; with 4 bad ones beside them {together:.2f} s, "
        f"connect timeout {CONNECT_TIMEOUT:g} s"
    )
    return {"60 hosts": round(alone, 2), "60 hosts and 4 bad ones": round(together, 2)}


def many_hosts(lab: Lab, rounds: int) -> dict[str, Any]:
    mnt = Peer([sys.executable, "-m", "mnt", "run", "-i", str(lab.inventory_path), "--", COMMAND])
    return {"256 hosts": _rounded(_median([run(mnt) for _ in range(min(rounds, 3))]))}


def run(peer: Peer, code: int = 0) -> Run:
    """Raises SystemExit where it ends with another code: then its time means nothing."""
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        process = subprocess.Popen(
            peer.argv,
            env=environment(peer.environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != code:
            output.seek(0)
            sys.exit(f"{peer.argv[0]} failed: {output.read().decode(errors='replace')[-2000:]}")
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def _helps(rounds: int) -> list[float]:
    return [run(Peer([sys.executable, "-m", "mnt", "--help"])).seconds for _ in range(rounds)]


def _median(runs: list[Run]) -> Run:
    return Run(*(statistics.median(values) for values in zip(*runs, strict=True)))


def _rounded(median: Run) -> dict[str, float]:
    return {
        "seconds": round(median.seconds, 2),
        "cpu": round(median.cpu, 2),
        "memory": round(median.memory),
    }


if __name__ == "__main__":
    main()
