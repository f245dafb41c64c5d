"""Tasks: each takes a `HostConnection` and does one thing on one host. A fleet runs them on many hosts.

`fab` can run some of them by hand, without an inventory, and prints the host's answer as JSON:

    fab -r mnt -c tasks --list
    fab -r mnt -c tasks -H user@host probe
    fab -r mnt -c tasks -H user@host mesh --workers node2,node3
    fab -r mnt -c tasks -H user@host program --name job.list --args '{"jobs_dir": "~/.mnt/jobs", ..}'

`-r mnt` is the directory of this package (in a checkout: as written). Fabric's own rules apply, not the
inventory's: `-i` names a key, and host keys are not checked.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """`ns`, the collection that `fab` asks for; made on demand, because Fabric is slow to import."""
    if name != "ns":
        raise AttributeError(name)
    from mnt.tasks.by_hand import collection

    return collection()
