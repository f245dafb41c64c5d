"""GPU checks: on what a real machine printed, changed in one place, and on texts of other drivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import pytest
from fleets import findings, make_fleet, only_finding, texts

from mnt import typed
from mnt.facts.system import GpuProcess, GpuRow, Gpus, KernelLog, LogLine, RemappedRows
from mnt.preflight.findings import Severity
from mnt.preflight.nvidia import active_links, number, slowdowns, value, xids
from mnt.remote.probe.nvidia import parse_csv

DATA = Path(__file__).parents[1] / "data" / "nvidia-smi"


def recorded(name: str) -> str:
    return (DATA / f"{name}.txt").read_text()


IDENTITY = parse_csv(recorded("query-gpu"), "index")
HEALTH = parse_csv(recorded("query-gpu-health"), "index")
ROWS = [{**one, **two} for one, two in zip(IDENTITY, HEALTH, strict=True)]
REMAPPED = parse_csv(recorded("query-remapped-rows"), "gpu_uuid")
LINKS = recorded("nvlink-s")


def gpus(change: dict[str, str] | None = None, remapped: dict[str, str] | None = None, **facts: Any) -> Any:
    """Facts of a host with two H200, the second of them changed."""
    found = (ROWS[0], {**ROWS[1], **(change or {})})
    rows = (REMAPPED[0], {**REMAPPED[1], **(remapped or {})})
    known = {"tool": "/usr/bin/nvidia-smi", "found": found, "rows": rows, "links": LINKS, **facts}
    read = typed.convert({key: known[key] for key in ("found", "rows", "processes") if key in known}, _Read)
    return {"gpus": Gpus(**{"kernel_log": KernelLog(), **known, **read})}


class _Read(TypedDict, total=False):
    found: tuple[GpuRow, ...]
    rows: tuple[RemappedRows, ...]
    processes: tuple[GpuProcess, ...]


def fleet_with(odd: Any) -> Any:
    """Four hosts with two GPUs each, of which node3 is odd."""
    return make_fleet({"node3": odd}, everywhere=gpus(), host={"gpus": 2})


def test_a_real_machine_is_well() -> None:
    assert findings(make_fleet(everywhere=gpus(), host={"gpus": 2})) == []


@pytest.mark.parametrize(
    "change",
    [
        {"pcie.link.gen.current": "1"},  # an idle GPU saves power
        {"clocks_event_reasons.active": "0x0000000000000004"},  # a busy one reaches its power cap
        {"ecc.errors.uncorrected.volatile.total": "[N/A]", "ecc.errors.uncorrected.aggregate.total": "[N/A]"},
        {"mig.mode.current": "[Not Supported]", "fabric.state": "[N/A]", "fabric.status": "[N/A]"},
        {"fabric.state": "Not Supported", "fabric.status": "Not Supported"},
        {"memory.used": "600 MiB"},
        {"persistence_mode": "[N/A]"},
    ],
)
def test_what_is_normal_or_not_known(change: dict[str, str]) -> None:
    assert findings(fleet_with(gpus(change))) == []


@pytest.mark.parametrize(
    ("odd", "check", "severity", "message"),
    [
        (
            gpus({"ecc.errors.uncorrected.volatile.total": "2"}),
            "gpu-ecc",
            "fail",
            "GPU 1 has had uncorrectable memory errors",
        ),
        (
            gpus({"ecc.errors.uncorrected.aggregate.total": "7"}),
            "gpu-ecc",
            "info",
            "GPU 1 had uncorrectable memory errors in the past",
        ),
        (
            gpus({"ecc.mode.current": "Disabled"}),
            "gpu-ecc",
            "warn",
            "ECC is Disabled and Enabled; on 3 of 4 hosts it is Enabled",
        ),
        (
            gpus(remapped={"remapped_rows.failure": "Yes", "remapped_rows.pending": "Yes"}),
            "gpu-remap",
            "fail",
            "GPU 1 could not remap a broken memory row",
        ),
        (
            gpus(remapped={"remapped_rows.pending": "Yes"}),
            "gpu-remap",
            "warn",
            "GPU 1 has a broken memory row, and will remap it at its next reset",
        ),
        (
            gpus({"gpu_recovery_action": "Reset"}),
            "gpu-recovery",
            "fail",
            "GPU 1 requests a recovery action: Reset",
        ),
        (
            gpus({"clocks_event_reasons.active": "0x0000000000000048"}),
            "gpu-throttle",
            "warn",
            "GPU 1 is slowed down: hardware slowdown, hardware thermal slowdown",
        ),
        (gpus({"persistence_mode": "Disabled"}), "gpu-persistence", "warn", "persistence mode is off"),
        (gpus({"pcie.link.width.current": "8"}), "gpu-pcie", "warn", "GPU 1 uses 8 of 16 PCIe lanes"),
        (
            gpus({"fabric.state": "In Progress", "fabric.status": "N/A"}),
            "gpu-fabric",
            "fail",
            "the NVLink fabric is not initialized: In Progress",
        ),
        (
            gpus({"fabric.status": "Invalid State"}),
            "gpu-fabric",
            "fail",
            "the NVLink fabric is not initialized: Completed, Invalid State",
        ),
        (
            gpus(links=LINKS.replace("Link 17: 26.562 GB/s", "Link 17: <inactive>", 1)),
            "gpu-nvlink",
            "warn",
            "GPU 0 has 17 active NVLinks; others of its model have 18",
        ),
        (gpus({"mig.mode.current": "Enabled"}), "gpu-mig", "fail", "MIG is on for GPU 1"),
        (
            gpus({"memory.used": "70000 MiB"}),
            "gpu-busy",
            "warn",
            "GPU 1 has memory in use, but no process is visible that uses it",
        ),
        (
            gpus({"name": "NVIDIA H100 80GB HBM3", "memory.total": "81559 MiB"}),
            "gpu-model",
            "warn",
            "the GPU model is NVIDIA H100 80GB HBM3, 81559 MiB and NVIDIA H200, 143771 MiB; "
            "on 3 of 4 hosts it is NVIDIA H200, 143771 MiB",
        ),
        (
            gpus(on_bus=("0000:00:06.0", "0000:00:07.0", "0000:00:08.0")),
            "gpu-count",
            "warn",
            "nvidia-smi shows only 2 of the 3 GPUs on the PCI bus",
        ),
        (
            {"gpus": Gpus("/usr/bin/nvidia-smi", (), "no answer in 10 s", on_bus=("0000:00:06.0",) * 2)},
            "gpu-count",
            "fail",
            "only 0 of 2 GPUs are available: no answer in 10 s; 2 on the PCI bus",
        ),
    ],
)
def test_one_odd_gpu(odd: Any, check: str, severity: str, message: str) -> None:
    finding = only_finding(fleet_with(odd), check, "node3")
    assert (finding.severity.value, finding.message) == (severity, message)


def test_who_holds_a_gpu_is_named() -> None:
    busy = parse_csv(
        "gpu_uuid, pid, used_gpu_memory [MiB], process_name\n"
        f"{ROWS[1]['uuid']}, 645, 1634 MiB, python3, with a comma\n",
        "gpu_uuid",
    )
    finding = only_finding(fleet_with(gpus({"memory.used": "1643 MiB"}, processes=busy)), "gpu-busy", "node3")
    assert finding.message == "GPU 1 is in use by python3, with a comma (pid 645)"
    assert finding.found.endswith("holds 1634 MiB")


def test_the_columns_of_a_recorded_list_of_processes_may_stand_in_any_order() -> None:
    (row,) = parse_csv(recorded("query-compute-apps-busy"), "pid")
    assert (row["gpu_uuid"], row["used_gpu_memory"]) == (ROWS[1]["uuid"], "1634 MiB")
    assert parse_csv(recorded("query-compute-apps-idle"), "pid") == []


def test_mig_everywhere_is_a_warning() -> None:
    both = tuple({**row, "mig.mode.current": "Enabled"} for row in ROWS)
    fleet = make_fleet(everywhere=gpus(found=both), host={"gpus": 2})
    assert texts(findings(fleet)) == ["gpu-mig node1,node2,node3,node4 warn"]


def test_gpus_without_any_nvlink_are_well() -> None:
    none = LINKS.replace("26.562 GB/s", "<inactive>")
    assert findings(make_fleet(everywhere=gpus(links=none), host={"gpus": 2})) == []


@pytest.mark.parametrize(("runs", "blamed"), [(False, ["gpu-fabric node3 fail"]), (True, []), (None, [])])
def test_before_hopper_the_process_tells(runs: bool | None, blamed: list[str]) -> None:
    silent = tuple({**row, "fabric.state": "[N/A]", "fabric.status": "[N/A]"} for row in ROWS)
    assert texts(findings(fleet_with(gpus(found=silent, fabric_manager=runs)))) == blamed


# --- Xids ------------------------------------------------------------------------------------------------

OFF_THE_BUS = "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FAULT = "NVRM: Xid (PCI:0000:41:00): 31, pid=3126, name=python, Ch 00000008, intr 10000000. MMU Fault"
OLD_FORM = "NVRM: Xid (0000:03:00): 48, An uncorrectable double bit error has been detected"


def log(*lines: tuple[float, str]) -> Any:
    return gpus(kernel_log=KernelLog(tuple(LogLine(age, text) for age, text in lines)))


@pytest.mark.parametrize(
    ("lines", "severity", "message", "found"),
    [
        (
            [(300, OFF_THE_BUS)],
            "fail",
            "Xid 79 of the GPU at 0000:41:00: the GPU has fallen off the bus",
            "5 min ago: pid=",
        ),
        (
            [(30 * 3600, OFF_THE_BUS)],
            "warn",
            "Xid 79 of the GPU at 0000:41:00: the GPU has fallen off the bus",
            "30 h ago: pid=",
        ),
        (
            [(9e5, OLD_FORM), (3600, OLD_FORM), (60, FAULT)],
            "warn",
            "Xid 48 of the GPU at 0000:03:00: an uncorrectable memory error",
            "1 h ago: An uncorrectable double bit error",
        ),
    ],
)
def test_xids(lines: list[tuple[float, str]], severity: str, message: str, found: str) -> None:
    finding = only_finding(fleet_with(log(*lines)), "gpu-xid", "node3")
    assert (finding.severity.value, finding.message) == (severity, message)
    assert finding.found.startswith(found)


def test_a_programs_own_faults_do_not_count() -> None:
    assert findings(fleet_with(log((60, FAULT), (60, "NVRM: Xid noise")))) == []


def test_a_kernel_log_that_may_not_be_read_is_unknown() -> None:
    denied = gpus(kernel_log=KernelLog(error="Operation not permitted"))
    finding = only_finding(fleet_with(denied), "gpu-xid", "node3")
    assert finding.severity is Severity.INFO
    assert finding.message.startswith("unknown: ")
    assert "needs root" in finding.message


def test_a_container_without_a_kernel_log() -> None:
    absent = gpus(kernel_log=KernelLog(error="No such file or directory"))
    finding = only_finding(fleet_with(absent), "gpu-xid", "node3")
    assert finding.severity is Severity.INFO
    assert finding.message == "unknown: there is no kernel log with the GPUs' Xids"
    assert "usermod" not in str(finding.fix)


@pytest.mark.parametrize(
    ("devices", "wanted", "severity", "shown"),
    [
        ("0", 1, None, 1),
        ("1", 1, None, 1),
        ("0, 1", 2, None, 2),
        ("GPU-00ecf176", 1, None, 1),
        ("", 0, None, 0),
        ("-1", 0, None, 0),
        ("0,7,1", 1, None, 1),  # there is no 7: it hides what follows
        ("0,1", 1, "warn", 2),
        ("0", 2, "fail", 1),
        ("7,0", 1, "fail", 0),
        ("", 2, "fail", 0),
    ],
)
def test_cuda_visible_devices(devices: str, wanted: int, severity: str | None, shown: int) -> None:
    host = {"gpus": wanted, "env": {"CUDA_VISIBLE_DEVICES": devices}}
    found = [each for each in findings(make_fleet(everywhere=gpus(), host=host)) if each.check == "gpu-count"]
    if severity is None:
        assert found == []
        return
    (finding,) = found
    assert finding.severity.value == severity
    assert finding.message.startswith(f"CUDA_VISIBLE_DEVICES shows {shown} GPUs to jobs, but they would use ")


def test_a_gpu_that_only_the_bus_has_is_told_whatever_cuda_is_shown() -> None:
    host = {"gpus": 1, "env": {"CUDA_VISIBLE_DEVICES": "0"}}
    bus = gpus(on_bus=("0000:00:06.0", "0000:00:07.0", "0000:00:08.0"))
    found = findings(make_fleet(everywhere=bus, host=host))
    assert [each.message for each in found] == ["nvidia-smi shows only 2 of the 3 GPUs on the PCI bus"]


def test_fewer_gpus_than_wanted_are_so_whatever_cuda_is_shown() -> None:
    host = {"gpus": 4, "env": {"CUDA_VISIBLE_DEVICES": "0,1"}}
    found = findings(make_fleet(everywhere=gpus(), host=host))
    assert [each.message for each in found if each.check == "gpu-count"] == ["only 2 of 4 GPUs are available"]


# --- texts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("143771 MiB", 143771),
        ("16", 16),
        ("0x0000000000000048", 0x48),
        ("[N/A]", None),
        ("[Not Supported]", None),
        ("[GPU requires reset]", None),
        ("", None),
    ],
)
def test_numbers(text: str, value: float | None) -> None:
    assert number(text) == value
    assert number(None) is None


@pytest.mark.parametrize("text", ["[N/A]", "N/A", "[Not Supported]", "", None])
def test_no_answer(text: str | None) -> None:
    assert value(text) is None


@pytest.mark.parametrize("name", ["event_reasons", "throttle_reasons"])
def test_slowdowns_by_both_names(name: str) -> None:
    assert slowdowns(GpuRow("0", **{name: "0x00000000000000A0"})) == [
        "software thermal slowdown",
        "power brake slowdown",
    ]
    assert slowdowns(GpuRow("0", **{name: "0x0000000000000107"})) == []


def test_links_of_a_real_machine() -> None:
    assert active_links(Gpus(links=LINKS)) == {"0": 18, "1": 18}
    assert active_links(Gpus(links="nvlink is not supported")) == {}


def test_lines_that_are_no_xid() -> None:
    assert list(xids((LogLine(1, "NVRM: loading NVIDIA UNIX Open Kernel Module"),))) == []


PROCESS = GpuProcess("GPU-aaa0", pid="77", memory="900 MiB", name="python")
TWO = (GpuRow("0", uuid="GPU-aaa0", memory_used="5000 MiB"), GpuRow("1", uuid="GPU-bbb1"))


@pytest.mark.parametrize(
    ("devices", "busy"),
    [
        (None, True),
        ("0", True),
        ("1", False),
        ("GPU-b", False),
        ("GPU-a,1", True),
        ("MIG-x", True),
        ("", False),
    ],
)
def test_a_busy_gpu_that_jobs_do_not_see(devices: str | None, busy: bool) -> None:
    env = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
    for processes in ((), (PROCESS,)):
        facts = {"gpus": Gpus("/usr/bin/nvidia-smi", TWO, processes=processes)}
        found = findings(make_fleet({"node1": facts}, count=1, host={"env": env, "gpus": 1}))
        assert bool([each for each in found if each.check == "gpu-busy"]) is busy, processes


def test_gpus_that_the_inventory_does_not_want_contradict_nothing() -> None:
    (finding,) = [
        each for each in findings(make_fleet(everywhere=gpus(), count=1)) if each.check == "gpu-count"
    ]
    assert (finding.message, finding.expected) == (
        "2 GPUs are available, but the inventory has 0",
        "0 (inventory: gpus)",
    )


def test_no_kernel_log_where_jobs_use_no_gpu() -> None:
    facts = gpus(kernel_log=KernelLog(error="No such file or directory"))
    assert [each.check for each in findings(make_fleet(everywhere=facts, count=1))] == ["gpu-count"]
