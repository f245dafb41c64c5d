"""Are the GPUs there?"""

from __future__ import annotations

from collections.abc import Iterator

from mnt.inventory.model import Host
from mnt.preflight.facts import FleetFacts, Gpus
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.registry import check


@check("gpu-count")
def gpu_count(fleet: FleetFacts) -> Iterator[Problem]:
    """nvidia-smi shows as many GPUs as the inventory's `gpus` says.

    Fewer fail. More are a warning: those would idle. None wanted and none there is well.
    """
    for host, facts in fleet.answers():
        if facts.gpus is not None:
            yield from _judge(host, facts.gpus)


def _judge(host: Host, gpus: Gpus) -> Iterator[Problem]:
    count = len(gpus.found)
    if count < host.gpus:
        why = f": {gpus.error}" if gpus.error else "" if gpus.tool else ": there is no nvidia-smi"
        look = (
            "look at nvidia-smi and at `sudo dmesg | grep -i nvrm`"
            if gpus.tool
            else "install the NVIDIA driver"
        )
        yield Problem(
            hosts=(host.name,),
            message=f"{count} of {host.gpus} GPUs are there{why}",
            found=f"{count}{why}",
            expected=f"{host.gpus} (inventory: gpus)",
            fix=f"{look}; or set `gpus` in the inventory to {count}",
        )
    elif count > host.gpus:
        yield Problem(
            hosts=(host.name,),
            message=f"{count} GPUs are there, and jobs would use {host.slots}",
            found=str(count),
            expected=f"{host.gpus} (inventory: gpus)",
            fix=f"set `gpus` in the inventory to {count}, if jobs are to use them all",
            severity=Severity.WARN,
        )
