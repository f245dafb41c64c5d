"""What a job would find: Python and its packages. Runs in the interpreter of the inventory: Python 3.8.

The probe starts it (`mnt.remote.probe.training`) where the interpreter is no program of the host itself: in a
container, or on a PATH that `activate` makes. Its arguments are the names of distributions.
"""

from __future__ import annotations

import json
import sys

from mnt.remote.probe.distributions import nccl_library, numa_binding, packages, torch_cuda


def main(names: list[str]) -> int:
    found = {
        "version": ".".join(str(part) for part in sys.version_info[:3]),
        "executable": sys.executable,
        "packages": packages(names, sys.path),
        "torch_cuda": torch_cuda(sys.path),
        "nccl_library": nccl_library(sys.path),
        "numa_binding": numa_binding(sys.path),
    }
    print("\n" + json.dumps(found))
    return 0
