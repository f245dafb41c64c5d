"""What a result was measured on."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any


def describe(*packages: str) -> dict[str, Any]:
    """The machine, how busy it is now, and the versions of `packages`."""
    cpus = [
        line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")
    ]
    memory = next(int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal"))
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": cpus[0] if cpus else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**20, 1),
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Ours and `more`, with bytecode kept, as pip keeps it for whoever installs a package."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **more}


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
