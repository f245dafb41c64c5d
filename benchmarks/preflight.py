"""Preflight against what guides tell people to run, and against a bare Fabric fan-out, on the same lab hosts.

    sudo python benchmarks/preflight.py [--hosts 64] [--fanout 32]

Parity: `pdsh` with `python --version`, `nvcc --version`, `import torch` and `import deepspeed`, which is how
the guides compare hosts, against the checks of preflight that compare the same. Whole: all of `mnt preflight`
against `hostname` by Fabric's own ThreadingGroup. Needs root, pdsh and the training environment
(scripts/train-venv.sh). Prints a table and writes benchmarks/results/preflight.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from machine import describe, environment

from mnt.lab import Lab, LabRequest

RESULT = Path(__file__).with_name("results") / "preflight.json"
PARITY = "python-version,torch-version,cuda-version,nccl-version,deepspeed-version,transformers-version"
BARE_FABRIC = """
import sys
from fabric import ThreadingGroup
key, *hosts = sys.argv[1:]
group = ThreadingGroup(*hosts, user="mnt", connect_kwargs={"key_filename": key, "look_for_keys": False})
results = group.run("hostname", hide=True)
assert len(results) == len(hosts)
"""


def main() -> None:
    options = argparse.ArgumentParser(description="Benchmark of mnt preflight on lab hosts.")
    options.add_argument("--hosts", type=int, default=64)
    options.add_argument("--fanout", type=int, default=32, help="of pdsh; its own default is 32")
    options.add_argument("--rounds", type=int, default=3, help="of what takes seconds; the median counts")
    asked = options.parse_args()
    about = describe("fabric", "paramiko")
    lab = Lab.up(LabRequest(name=f"bench-{os.getpid()}", count=asked.hosts))
    try:
        fast = _medians(_fast(lab), asked.rounds)
        slow = {name: _seconds(run) for name, run in _guides(lab, asked.fanout).items()}
    finally:
        lab.down()
    seconds = {**fast, **slow}
    reach = seconds["mnt preflight --only nic-reach"] - seconds["mnt preflight --only ssh"]
    guides = sum(slow.values())
    parity = seconds["mnt preflight --only PARITY"]
    allowed = 3 * seconds["fabric hostname"] + reach
    result = {
        "machine": about,
        "hosts": asked.hosts,
        "pdsh_fanout": asked.fanout,
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "guides_seconds": round(guides, 2),
        "parity_is_faster_by": round(guides / parity, 1),
        "reach_seconds": round(reach, 2),
        "whole_may_take": round(allowed, 2),
        "whole_takes": round(seconds["mnt preflight"], 2),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    for name, value in seconds.items():
        print(f"{value:8.2f} s  {name}")
    print(f"\nparity: {guides / parity:.0f} times faster than the guides' commands (goal: 20)")
    print(f"whole:  {seconds['mnt preflight']:.1f} s; 3 x fabric + reach is {allowed:.1f} s")


def _fast(lab: Lab) -> dict[str, Callable[[], None]]:
    addresses = [host.spec.management for host in lab.hosts]
    fabric = [sys.executable, "-c", BARE_FABRIC, str(lab.directory / "identity"), *addresses]
    mnt = [sys.executable, "-m", "mnt", "preflight", "-i", str(lab.inventory_path)]
    return {
        "fabric hostname": lambda: _run(fabric),
        "mnt preflight --only PARITY": lambda: _run([*mnt, "--only", PARITY]),
        "mnt preflight --only ssh": lambda: _run([*mnt, "--only", "ssh"]),
        "mnt preflight --only nic-reach": lambda: _run([*mnt, "--only", "nic-reach"]),
        "mnt preflight": lambda: _run(mnt),
    }


def _guides(lab: Lab, fanout: int) -> dict[str, Callable[[], None]]:
    """What the guides run by pdsh. There is no nvcc in a lab: its command costs what any does."""
    python = lab.spec.python
    commands = {
        "pdsh python --version": f"{python} --version",
        "pdsh nvcc --version": "nvcc --version || true",
        "pdsh import torch": f"{python} -c 'import torch; print(torch.__version__)'",
        "pdsh import deepspeed": f"{python} -c 'import deepspeed; print(deepspeed.__version__)'",
    }
    hosts = ",".join(host.spec.management for host in lab.hosts)
    arguments = f"-i {lab.directory}/identity -o UserKnownHostsFile={lab.directory}/known_hosts"
    more = {"PDSH_SSH_ARGS_APPEND": arguments, "PDSH_RCMD_TYPE": "ssh"}

    def pdsh(command: str) -> Callable[[], None]:
        return lambda: _run(
            [
                "pdsh",
                "-S",
                "-f",
                str(fanout),
                "-l",
                "mnt",
                "-w",
                hosts,
                f"export DS_ACCELERATOR=cpu; {command}",
            ],
            more,
        )

    return {name: pdsh(command) for name, command in commands.items()}


def _medians(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Each in turn, again and again, so that a busy minute of the machine's hits them all."""
    times = [{name: _seconds(run) for name, run in runs.items()} for _ in range(rounds)]
    return {name: statistics.median(each[name] for each in times) for name in runs}


def _seconds(run: Callable[[], None]) -> float:
    start = time.monotonic()
    run()
    return time.monotonic() - start


def _run(command: Sequence[str], more: Mapping[str, str] | None = None) -> None:
    """Raises SystemExit where the command fails: then its time means nothing."""
    env = environment(more or {})
    done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace")
    if done.returncode:
        sys.exit(f"{command[0]} failed: {(done.stderr or done.stdout)[-2000:]}")


if __name__ == "__main__":
    main()
