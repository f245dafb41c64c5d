"""Preflight against what guides tell people to run, on the same lab hosts.

    sudo python benchmarks/preflight.py [--hosts 64] [--fanout 32]

`pdsh` with `python --version`, `nvcc --version`, `import torch` and `import deepspeed`, which is how the
guides compare hosts, against the checks of preflight that compare the same. Needs root, pdsh and the training
environment (scripts/train-venv.sh). Prints a table and writes benchmarks/results/preflight.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from machine import describe
from runs import Run, median, run

from mnt.lab.lab import Lab, LabRequest

RESULT = Path(__file__).with_name("results") / "preflight.json"
PARITY = "python-version,torch-version,cuda-version,nccl-version,deepspeed-version,transformers-version"


def main() -> None:
    options = argparse.ArgumentParser(description="Benchmark of mnt preflight on lab hosts.")
    options.add_argument("--hosts", type=int, default=64)
    options.add_argument("--fanout", type=int, default=32, help="of pdsh; its own default is 32")
    options.add_argument("--rounds", type=int, default=3, help="of preflight; the median counts")
    asked = options.parse_args()
    about = describe("fabric", "paramiko")
    lab = Lab.up(LabRequest(name=f"bench-{os.getpid()}", count=asked.hosts))
    try:
        ours = median([run(_ours(lab)) for _ in range(asked.rounds)]).seconds
        guides = {name: start().seconds for name, start in _guides(lab, asked.fanout).items()}
    finally:
        lab.down()
    seconds = {"mnt preflight --only PARITY": ours, **guides}
    whole = sum(guides.values())
    result = {
        "machine": about,
        "hosts": asked.hosts,
        "pdsh_fanout": asked.fanout,
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "guides_seconds": round(whole, 2),
        "parity_is_faster_by": round(whole / ours, 1),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    for name, value in seconds.items():
        print(f"{value:8.2f} s  {name}")
    print(f"\nparity: {whole / ours:.0f} times faster than the guides' commands (goal: 20)")


def _ours(lab: Lab) -> list[str]:
    return [sys.executable, "-m", "mnt", "preflight", "-i", str(lab.inventory_path), "--only", PARITY]


def _guides(lab: Lab, fanout: int) -> dict[str, Callable[[], Run]]:
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

    def pdsh(command: str) -> Callable[[], Run]:
        return lambda: run(
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


if __name__ == "__main__":
    main()
