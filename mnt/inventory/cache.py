"""Inventories as they were resolved last time: checking a file anew takes longer than reaching a host.

What is kept is plain JSON below the user's cache directory (XDG Base Directory Specification, 0.8), one file
an inventory. It holds as long as neither the inventory's bytes nor the code that reads them have changed; in
any other case it is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mnt.inventory.model import Host, Inventory, Mount, Network, Rdma, RequiredPath, Ssh, Tuning

_MOST = 64  # files that are kept, the newest


def load(file: str) -> Inventory:
    """As `mnt.inventory.loader.load`, which does it where the cache does not know. Raises InventoryError."""
    try:
        key = _key(file, Path(file).read_bytes())
    except OSError:
        return _load_anew(file)  # it says what is wrong
    place = _place(file)
    try:
        kept = json.loads(place.read_bytes())
        if kept["key"] == key:
            return _restore(_tuples(kept["inventory"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    inventory = _load_anew(file)
    with contextlib.suppress(OSError):  # a home that cannot be written to
        _keep(place, {"key": key, "inventory": asdict(inventory)})
    return inventory


def _load_anew(file: str) -> Inventory:
    from mnt.inventory import loader

    return loader.load(file)


def _key(file: str, content: bytes) -> str:
    """Changes with all that an Inventory follows from."""
    digest = hashlib.sha256(content)
    for module in sorted(Path(__file__).parent.glob("*.py")):
        status = module.stat()
        digest.update(f"{module.name} {status.st_mtime_ns} {status.st_size}\n".encode())
    digest.update(os.fsencode(f"{file}\0{os.path.abspath(file)}"))
    return digest.hexdigest()


def _place(file: str) -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(home) if os.path.isabs(home) else Path("~/.cache").expanduser()
    name = hashlib.sha256(os.fsencode(os.path.abspath(file))).hexdigest()
    return cache / "mnt" / "inventories" / f"{name[:32]}.json"


def _keep(place: Path, value: dict[str, Any]) -> None:
    """Write it whole or not at all. Raises OSError."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=place.parent)  # 0600
    try:
        with open(descriptor, "w", encoding="utf-8") as new:
            json.dump(value, new)
        os.replace(name, place)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    files = sorted(place.parent.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
    for old in files[_MOST:]:
        old.unlink(missing_ok=True)


def _tuples(value: Any) -> Any:
    """JSON's arrays as tuples: the model has no lists."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value


def _restore(kept: dict[str, Any]) -> Inventory:
    """Raises TypeError or KeyError for what `asdict` did not write."""
    return Inventory(
        **{
            **kept,
            "hosts": tuple(_restore_host(host) for host in kept["hosts"]),
            "network": Network(**kept["network"]),
            "storage": tuple(Mount(**mount) for mount in kept["storage"]),
            "paths": tuple(RequiredPath(**path) for path in kept["paths"]),
        }
    )


def _restore_host(kept: dict[str, Any]) -> Host:
    return Host(
        **{
            **kept,
            "ssh": Ssh(**kept["ssh"]),
            "rdma": Rdma(**kept["rdma"]),
            "tuning": Tuning(**kept["tuning"]),
        }
    )
