"""GPUs, from nvidia-smi, the PCI bus and the kernel. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import os
import re
import time

from mnt.remote.common.files import entries, read, strerror
from mnt.remote.probe.children import KILLED, Ran, find, run_all, run_apart

# A field that the driver does not know is omitted, see `_ask`.
FIELDS = (
    "index",
    "name",
    "uuid",
    "pci.bus_id",
    "driver_version",
    "memory.total",
    "memory.used",
    "persistence_mode",
    "ecc.mode.current",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.aggregate.total",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "mig.mode.current",
)
# Fields that have another name, or do not exist, in older drivers: (first major version with it, field).
_SINCE = (
    (535, "clocks_event_reasons.active"),
    (535, "fabric.state"),
    (535, "fabric.status"),
    (570, "gpu_recovery_action"),
)
_BEFORE = ((535, "clocks_throttle_reasons.active"),)
_ROWS = "gpu_uuid,remapped_rows.pending,remapped_rows.failure,remapped_rows.uncorrectable"
_PROCESSES = "gpu_uuid,pid,used_memory,name"  # a name may contain commas: it comes last

_VENDOR = "0x10de"
_GPU_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controllers
_SWITCH_CLASS = "0x0680"  # an NVSwitch is an `other bridge`
_MANAGER = "nv-fabricmanager"[:15]  # as the kernel stores it

_WORDS = 1000  # characters kept of what nvidia-smi says besides its answer
_KEPT = 200  # lines of the kernel log: the last
_RECORD = 8192  # bytes: more than the kernel puts into one


def gpus(deadline: float) -> dict[str, object]:
    """As `mnt.facts.system.Gpus`; costs almost nothing on a host without GPUs and nvidia-smi.

    All queries of nvidia-smi together take at most `deadline` seconds. Allow many: without persistence mode
    each query wakes all GPUs up.
    """
    tool = find("nvidia-smi")
    on_bus, switches = pci_devices()
    found: dict[str, object] = {"tool": tool, "on_bus": on_bus}
    if on_bus:
        found["kernel_log"] = kernel_log("NVRM: Xid", deadline)
    if switches:
        found["fabric_manager"] = _runs(_MANAGER)
    return {**found, **_ask(tool, deadline)} if tool else found


def _ask(tool: str, deadline: float) -> dict[str, object]:
    """The answers of nvidia-smi to all queries, which run at once.

    It refuses a query with an unknown field, and names that field, which is then omitted.
    """
    end = time.monotonic() + deadline
    fields = list(known_fields(_driver()))
    answers = run_apart(
        {
            "gpus": _query(tool, fields),
            "rows": [tool, "--query-remapped-rows=" + _ROWS, "--format=csv"],
            "processes": [tool, "--query-compute-apps=" + _PROCESSES, "--format=csv"],
            "links": [tool, "nvlink", "-s"],
        },
        deadline,
    )
    ran = answers["gpus"]
    while ran.code:
        unknown = re.search(r'Field "([^"]+)" is not a valid field', ran.output + ran.errors)
        if unknown is None or unknown.group(1) not in fields:
            break
        fields.remove(unknown.group(1))
        again = {"gpus": _query(tool, fields)}
        ran = run_apart(again, max(0.0, end - time.monotonic()))["gpus"]
    links = answers["links"]
    return {
        **_gpus(ran),
        # Not every GPU and driver reports these.
        "rows": parse_csv(answers["rows"].output, "gpu_uuid"),
        "processes": parse_csv(answers["processes"].output, "gpu_uuid"),
        "links": links.output if links.code == 0 or links.output.startswith("GPU ") else "",
    }


def _gpus(ran: Ran) -> dict[str, object]:
    """The GPUs that it has listed, whatever its exit status is, and what it says besides.

    With a corrupted infoROM it answers in full, warns, and exits with 14; of a lost GPU it may say so in the
    middle of the list (nvidia-smi(1), RETURN VALUE).
    """
    complete = ran.output if ran.code == 0 else ran.output[: ran.output.rfind("\n") + 1]
    found = [row for row in parse_csv(complete, "index") if row["index"].isdigit()]
    if not found:
        said = " ".join((ran.output + ran.errors).split())
        return {"found": [], "error": (said or f"exit status {ran.code}") if ran.code else None}
    listed = {", ".join(row.values()) for row in found}
    lines = (complete if ran.code == KILLED else ran.output).splitlines()
    others = [line for line in lines if line not in listed and not line.startswith("index, ")]
    said = " ".join(" ".join([*others, ran.errors]).split())
    silent = f"exit status {ran.code}" if ran.code else None
    return {"found": found, "error": None, "warning": said[:_WORDS] or silent}


def _query(tool: str, fields: list[str]) -> list[str]:
    return [tool, "--query-gpu=" + ",".join(fields), "--format=csv"]


def known_fields(driver: int | None) -> list[str]:
    """The fields that a driver of this major version knows; None: a recent one."""
    return [
        *FIELDS,
        *(field for since, field in _SINCE if driver is None or driver >= since),
        *(field for until, field in _BEFORE if driver is not None and driver < until),
    ]


def _driver() -> int | None:
    major = read("/sys/module/nvidia/version").partition(".")[0]
    return int(major) if major.isdigit() else None


def parse_csv(text: str, first: str) -> list[dict[str, str]]:
    """Rows by column name, without the unit in the header: `memory.total [MiB]`.

    `first` is the name of the first column. Other lines are ignored. The last column may contain commas.
    """
    lines = text.splitlines()
    header = next((i for i, line in enumerate(lines) if line.split(", ")[0] == first), len(lines))
    names = [name.split(" [")[0] for name in "".join(lines[header : header + 1]).split(", ")]
    rows = (line.split(", ", len(names) - 1) for line in lines[header + 1 :])
    return [dict(zip(names, row)) for row in rows if len(row) == len(names)]


def pci_devices(root: str = "/") -> tuple[list[str], int]:
    """(addresses of NVIDIA's GPUs on the PCI bus, number of NVSwitches), with or without a driver."""
    devices = os.path.join(root, "sys/bus/pci/devices")
    # One file lists the vendors of all devices: on most hosts without a GPU that is enough.
    table = read(os.path.join(root, "proc/bus/pci/devices"))
    if table and not re.search(r"^[0-9a-f]{4}\t10de", table, re.MULTILINE):
        return [], 0
    found, switches = [], 0
    for address in sorted(entries(devices)):
        if read(os.path.join(devices, address, "vendor")).strip() == _VENDOR:
            kind = read(os.path.join(devices, address, "class"))[:6]
            if kind in _GPU_CLASSES:
                found.append(address)
            switches += kind == _SWITCH_CLASS
    return found, switches


def _runs(command: str) -> bool | None:
    """Whether a process of that name runs; None if others' processes are hidden (hidepid of proc(5))."""
    if not os.path.exists("/proc/1"):
        return None
    return any(read(f"/proc/{pid}/comm").strip() == command for pid in filter(str.isdigit, entries("/proc")))


def kernel_log(wanted: str, deadline: float) -> dict[str, object]:
    """The lines since boot that contain this text, or why they are unknown: `mnt.facts.system.KernelLog`."""
    try:
        lines, error = _from_kmsg(wanted.encode()), None
    except OSError as problem:
        lines, error = _from_journal(wanted, deadline), strerror(problem)
    return {"lines": (lines or [])[-_KEPT:], "error": error if lines is None else None}


def _from_kmsg(wanted: bytes) -> list[dict[str, object]] | None:
    """From /dev/kmsg, one record per read: `priority,sequence,microseconds,flags;text`. Raises OSError."""
    found: list[dict[str, object]] = []
    now = time.monotonic()
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(descriptor, _RECORD)
            except BrokenPipeError:  # the record was just overwritten: the next read continues after it
                continue
            except BlockingIOError:
                return found
            if wanted in record:
                head, _, text = record.partition(b";")
                age = max(0.0, now - int(head.split(b",")[2]) / 1e6)
                found.append({"age": age, "text": text.split(b"\n")[0].decode("utf-8", "replace")})
    finally:
        os.close(descriptor)


def _from_journal(wanted: str, deadline: float) -> list[dict[str, object]] | None:
    """From the journal, which the groups adm and systemd-journal may read; None if this user may not."""
    tool = find("journalctl")
    if tool is None:
        return None
    argv = [tool, "--dmesg", "--boot", "--no-pager", "--output=short-unix", "--grep=" + re.escape(wanted)]
    code, output = run_all({"journal": argv}, deadline)["journal"]
    # If this user may read only other messages, it prints a hint and exits with 0.
    if code not in (0, 1) or re.search(r"not seeing messages|No journal files|ermission", output):
        return None
    lines = re.findall(r"^(\d+\.\d+) \S+ kernel: (.*)$", output, re.MULTILINE)
    return [{"age": time.time() - float(at), "text": text} for at, text in lines]
