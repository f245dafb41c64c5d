"""What `mnt status` and whole `mnt preflight` cost the head, beside an earlier tree.

    sudo python benchmarks/head.py --before CHECKOUT

CPU time: that of the mnt process alone, on 64 lab hosts, this tree and CHECKOUT in turn; each runs in its own
.venv where it has one. Wall time: on 8 lab hosts, beside `mnt run -- hostname` and a bare Fabric fan-out.
Needs root. Prints tables and writes benchmarks/results/head.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from machine import describe
from runs import Run, in_turn, run

from mnt.fleet import Fleet, HostConnection
from mnt.inventory import loader
from mnt.lab.lab import Lab, LabRequest
from mnt.tasks.job import NodeSpec, spawn_node, stage_node

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "head.json"
MANY, FEW = 64, 8  # hosts
CPU_GOAL = 1.10  # times the CPU time of the tree before
STATUS_GOAL = 0.25  # seconds beyond mnt run -- hostname
BARE_FABRIC = """
import sys
from fabric import ThreadingGroup
key, *hosts = sys.argv[1:]
group = ThreadingGroup(*hosts, user="mnt", connect_kwargs={"key_filename": key, "look_for_keys": False})
results = group.run("hostname", hide=True)
assert len(results) == len(hosts)
"""


def main() -> None:
    options = argparse.ArgumentParser(description="Benchmark of what mnt costs the head, on lab hosts.")
    options.add_argument("--before", type=Path, required=True, help="a checkout of the tree to compare with")
    options.add_argument("--rounds", type=int, default=9, help="all in turn, again and again; medians count")
    asked = options.parse_args()
    about = describe("fabric", "paramiko")
    trees = {"before": asked.before.resolve(), "after": ROOT}
    cpu = with_lab(MANY, lambda lab: cpu_times(lab, trees, asked.rounds))
    wall = with_lab(FEW, lambda lab: wall_times(lab, asked.rounds))
    about["load_at_the_end"] = round(os.getloadavg()[0], 1)
    RESULT.write_text(json.dumps({"machine": about, "rounds": asked.rounds, **cpu, **wall}, indent=2) + "\n")


def with_lab(count: int, measure: Callable[[Lab], dict[str, Any]]) -> dict[str, Any]:
    lab = Lab.up(LabRequest(name=f"head-bench-{os.getpid()}", count=count))
    try:
        return measure(lab)
    finally:
        lab.down()


def cpu_times(lab: Lab, trees: dict[str, Path], rounds: int) -> dict[str, Any]:
    free = both(lab, trees, rounds, "status")
    start_sleepers(lab)
    found = {
        "mnt status, no job": free,
        "mnt status, a job on each": both(lab, trees, rounds, "status"),
        "mnt preflight": both(lab, trees, rounds, "preflight"),
    }
    print(f"{MANY} hosts, CPU of the head, ms a host: before, after, times before (goal: {CPU_GOAL:.2f})")
    figures = {}
    for name, runs in found.items():
        before, after = (runs[tree].cpu / MANY * 1000 for tree in ("before", "after"))
        print(f"{name:26} {before:6.1f} {after:6.1f} {after / before:6.2f}")
        figures[name] = {"before": round(before, 1), "after": round(after, 1)}
    return {f"CPU of the head, ms a host of {MANY}": figures}


def both(lab: Lab, trees: dict[str, Path], rounds: int, *command: str) -> dict[str, Run]:
    return in_turn({name: partial(mnt, lab, *command, tree=tree) for name, tree in trees.items()}, rounds)


def wall_times(lab: Lab, rounds: int) -> dict[str, Any]:
    addresses = [host.spec.management for host in lab.hosts]
    fabric = [sys.executable, "-c", BARE_FABRIC, str(lab.directory / "identity"), *addresses]
    commands = {
        "fabric hostname": partial(run, fabric),
        "mnt run": partial(mnt, lab, "run", after=("--", "hostname")),
        "mnt status": partial(mnt, lab, "status"),
        "mnt preflight --only ssh": partial(mnt, lab, "preflight", "--only", "ssh"),
        "mnt preflight --only nic-reach": partial(mnt, lab, "preflight", "--only", "nic-reach"),
        "mnt preflight": partial(mnt, lab, "preflight"),
    }
    seconds = {name: each.seconds for name, each in in_turn(commands, rounds).items()}
    reach = seconds["mnt preflight --only nic-reach"] - seconds["mnt preflight --only ssh"]
    print(f"\n{FEW} hosts, wall time")
    goal = seconds["mnt run"] + STATUS_GOAL
    print(f"mnt status {seconds['mnt status']:.2f} s; goal: mnt run and {STATUS_GOAL:g} s, {goal:.2f} s")
    goal = 3 * seconds["fabric hostname"] + reach
    print(
        f"mnt preflight {seconds['mnt preflight']:.2f} s; goal: 3 x fabric hostname and reach, {goal:.2f} s"
    )
    return {f"wall seconds, {FEW} hosts": {name: round(value, 2) for name, value in seconds.items()}}


def mnt(lab: Lab, *command: str, after: tuple[str, ...] = (), tree: Path = ROOT) -> Run:
    own = tree / ".venv" / "bin" / "python"
    python = str(own) if own.exists() else sys.executable
    return run([python, "-m", "mnt", *command, "-i", str(lab.inventory_path), *after], cwd=tree)


def start_sleepers(lab: Lab) -> None:
    with Fleet(loader.load(lab.inventory_path).hosts) as fleet:
        errors = fleet.run(start_sleeper).errors()
    if errors:
        sys.exit(f"no job: {next(iter(errors.values()))}")


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
        "cwd": "/tmp",  # noqa: S108 - a working directory, nothing is written there
        "argv": ["sleep", "1000"],
        "env": {},
        "secrets": [],
        "jobs_dir": connection.target.jobs_dir,
        "master": {"addr": "127.0.0.1", "port": 29500},
    }
    stage_node(connection, spec)
    spawn_node(connection, spec["jobs_dir"], spec["job"], host)


if __name__ == "__main__":
    main()
