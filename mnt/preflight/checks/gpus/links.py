"""The links of the GPUs: PCIe, NVLink and the NVLink fabric."""

from __future__ import annotations

from collections.abc import Iterator

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.inventory.model import Host
from mnt.preflight.checks.gpus.rows import rows
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.nvidia import Row, active_links, label, number, value
from mnt.preflight.registry import check, host_check


@host_check("gpu-pcie", severity=Severity.WARN)
def gpu_pcie(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """Every GPU uses all PCIe lanes that it and its slot support.

    The PCIe generation is not judged, because it drops while a GPU is idle.
    """
    for row in rows(facts):
        now, most = number(row, "pcie.link.width.current"), number(row, "pcie.link.width.max")
        if now is not None and most is not None and now < most:
            yield Problem(
                message=f"{label(row)} uses {now:.0f} of {most:.0f} PCIe lanes",
                found=f"x{now:.0f}",
                expected=f"x{most:.0f}",
                fix="reseat the card or its riser; to compare: sudo lspci -vv -s "
                + row.get("pci.bus_id", "BUS_ID"),
            )


@host_check("gpu-fabric")
def gpu_fabric(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """On hosts with NVSwitches, the fabric manager has initialized the NVLink fabric.

    Until then CUDA programs fail with error 802, system not yet initialized. The check uses the fabric state
    that drivers 535 and newer report for Hopper and newer GPUs. Without this state, it looks for the process
    nv-fabricmanager if NVSwitches are on the PCI bus.
    """
    gpus = facts.gpus
    if gpus is None or not gpus.found:
        return
    states = dict.fromkeys(filter(None, map(_fabric, gpus.found)))
    wrong = [state for state in states if state != "Completed, Success"]
    if not states and gpus.fabric_manager is False:
        wrong = ["the process nv-fabricmanager does not run"]
    if wrong:
        yield Problem(
            message=f"the NVLink fabric is not initialized: {'; '.join(wrong)}",
            found="; ".join(wrong),
            expected="Completed, Success",
            fix="sudo systemctl enable --now nvidia-fabricmanager (same version as the driver); "
            "then check its log: journalctl -u nvidia-fabricmanager",
        )


def _fabric(row: Row) -> str | None:
    state, status = value(row, "fabric.state"), value(row, "fabric.status")
    if state is None or state == "Not Supported":
        return None
    return f"{state}, {status or 'Success'}" if state == "Completed" else state


@check("gpu-nvlink", severity=Severity.WARN)
def gpu_nvlink(fleet: FleetFacts) -> Iterator[Problem]:
    """Every GPU has as many active NVLinks as the other GPUs of its model on the selected hosts."""
    counts: dict[tuple[str, str, str], int] = {}  # host, index, model -> active links
    for host, facts in fleet.answers():
        links = active_links(facts.gpus) if facts.gpus else {}
        for row in rows(facts):
            if row.get("index") in links:
                counts[host.name, row["index"], row.get("name", "")] = links[row["index"]]
    most: dict[str, int] = {}
    for (_, _, model), count in counts.items():
        most[model] = max(most.get(model, 0), count)
    for (name, index, model), count in counts.items():
        if count < most[model]:
            yield Problem(
                hosts=(name,),
                message=f"GPU {index} has {count} active NVLinks; others of its model have {most[model]}",
                found=f"{count} of {most[model]}",
                expected=str(most[model]),
                fix=f"find the inactive links: nvidia-smi nvlink -s -i {index}; then reset the GPU or reboot",
            )
