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
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import peers
from machine import describe
from runs import in_turn, median, run

from mnt.lab.lab import Lab, LabRequest

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "fanout.json"
sys.path.append(str(ROOT / "tests" / "lab"))

import faults  # noqa: E402 - the tests' ways to break a host

COMMAND = "hostname"
CONNECT_TIMEOUT = 2.0  # seconds
GOALS = {"asyncssh, bare": 1 / 1.25, "pdsh": 2.0, "clush": 3.0, "ansible raw": 3.0}


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
    medians = in_turn(
        {name: partial(run, peer.argv, peer.environment) for name, peer in there.items()}, asked.rounds
    )
    ours = medians["mnt run"].seconds
    print(f"{'64 hosts':18} {'seconds':>8} {'CPU':>6} {'MiB':>6}  times mnt run, and the goal")
    for name, taken in medians.items():
        goal = f"{taken.seconds / ours:6.2f}  {GOALS[name]:.2f}" if name in GOALS else ""
        print(f"{name:18} {taken.seconds:8.2f} {taken.cpu:6.2f} {taken.memory:6.0f}  {goal}")
    return {
        "64 hosts": {name: taken.rounded() for name, taken in medians.items()},
        "times mnt run": {name: round(medians[name].seconds / ours, 2) for name in GOALS},
    }


def with_bad_hosts(lab: Lab, rounds: int) -> dict[str, Any]:
    """Two hosts that are gone, and two that accept connections and say nothing."""
    bad = [lab.host(f"node{number}") for number in (7, 23, 42, 64)]
    for host in bad[:2]:
        faults.power_off(host)
    for host in bad[2:]:
        faults.silence_sshd(host)
    mnt = [sys.executable, "-m", "mnt", "run", "-i", str(lab.inventory_path)]
    limit = ["--connect-timeout", str(CONNECT_TIMEOUT)]
    found = in_turn(
        {
            "healthy": partial(run, [*mnt, "-x", ",".join(host.name for host in bad), "--", COMMAND]),
            "all": partial(run, [*mnt, *limit, "--", COMMAND], code=255),
        },
        rounds,
    )
    alone, together = (found[name].seconds for name in ("healthy", "all"))
    print(
        f"\n60 hosts: {alone:.2f} s; with 4 bad ones beside them {together:.2f} s, "
        f"connect timeout {CONNECT_TIMEOUT:g} s"
    )
    return {"60 hosts": round(alone, 2), "60 hosts and 4 bad ones": round(together, 2)}


def many_hosts(lab: Lab, rounds: int) -> dict[str, Any]:
    mnt = [sys.executable, "-m", "mnt", "run", "-i", str(lab.inventory_path), "--", COMMAND]
    return {"256 hosts": median([run(mnt) for _ in range(min(rounds, 3))]).rounded()}


def _helps(rounds: int) -> list[float]:
    return [run([sys.executable, "-m", "mnt", "--help"]).seconds for _ in range(rounds)]


if __name__ == "__main__":
    main()
