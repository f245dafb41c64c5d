"""nvidia-smi that answers, but warns or fails: what it answered counts, and its words are shown."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fleets import findings, make_fleet, only_finding, texts
from waiting import HANG, PATIENCE

from mnt.facts.host import HostFacts
from mnt.facts.system import GpuRow, Gpus
from mnt.preflight.findings import Severity
from mnt.remote.probe import nvidia

HEAD = "index, name, uuid, memory.total [MiB], driver_version"
ONE = "0, NVIDIA H200, GPU-a0, 143771 MiB, 580.159.04"
TWO = "1, NVIDIA H200, GPU-a1, 143771 MiB, 580.159.04"
LOST = "1, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]"
INFOROM = "WARNING: infoROM is corrupted at gpu 0000:41:00.0"
HANDLE = "Unable to determine the device handle for GPU1: 0000:41:00.0: GPU is lost. Reboot the system"


def ask(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch, deadline: float = PATIENCE) -> Gpus:
    """What the probe says of an nvidia-smi that does this when asked for its GPUs, and knows nothing else."""
    tool = directory / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncase $1 in --query-gpu=*) {script};; *) exit 3;; esac\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(directory), prepend=":")
    gpus = HostFacts.parse("here", {"hostname": "here", "gpus": nvidia.gpus(deadline)}).gpus
    assert gpus is not None
    return gpus


def say(*lines: str) -> str:
    return "; ".join(f"echo '{line}'" for line in lines)


@pytest.mark.parametrize(
    ("script", "usable", "warning"),
    [
        (f"{say(HEAD, ONE, TWO)}; echo '{INFOROM}' >&2; exit 14", 2, INFOROM),
        (f"{say(HEAD, ONE, TWO, INFOROM)}; exit 14", 2, INFOROM),
        (f"{say(INFOROM, HEAD, ONE, TWO)}; exit 14", 2, INFOROM),
        (f"{say(HEAD, ONE)}; echo '{INFOROM}' >&2; {say(TWO)}; exit 14", 2, INFOROM),
        (f"{say(HEAD, ONE, TWO)}; echo '{INFOROM}' >&2", 2, INFOROM),
        (f"{say(HEAD, ONE, TWO)}; exit 9", 2, "exit status 9"),
        (f"{say(HEAD, ONE)}; echo '{HANDLE}' >&2; exit 15", 1, HANDLE),
        (f"{say(HEAD, ONE, LOST)}; exit 15", 1, "exit status 15"),
        (say(HEAD, ONE, LOST.replace("[GPU is lost]", "[Unknown Error]")), 1, None),
        (say(HEAD, ONE, LOST.replace("[GPU is lost]", "ERR!")), 1, None),
        (
            say(HEAD, ONE.replace("143771 MiB", "[N/A]"), TWO.replace("143771 MiB", "[Not Supported]")),
            2,
            None,
        ),
        (say(HEAD, ONE, TWO), 2, None),
    ],
)
def test_what_was_answered_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, usable: int, warning: str | None
) -> None:
    gpus = ask(tmp_path, script, monkeypatch)
    assert (len(gpus.usable), gpus.warning, gpus.error) == (usable, warning, None)


def test_what_was_answered_before_it_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"{say(HEAD, ONE)}; printf '1, NVIDIA'; exec sleep {HANG}"
    gpus = ask(tmp_path, script, monkeypatch, deadline=1.0)
    assert [gpu.name for gpu in gpus.usable] == ["NVIDIA H200"]
    assert gpus.warning == "no answer in 1 s"


def rows(*lines: str, **gpus: Any) -> dict[str, Any]:
    found = msgspec.convert(nvidia.parse_csv("\n".join([HEAD, *lines]), "index"), tuple[GpuRow, ...])
    return {"gpus": Gpus("/usr/bin/nvidia-smi", found, **gpus)}


WELL = rows(ONE, TWO)


def test_a_warning_is_a_warning_with_its_words() -> None:
    fleet = make_fleet({"node2": rows(ONE, TWO, warning=INFOROM)}, everywhere=WELL, host={"gpus": 2})
    finding = only_finding(fleet, "gpu-warning", "node2")
    assert (finding.severity, finding.message) == (Severity.WARN, f"nvidia-smi warns: {INFOROM}")


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (rows(ONE, LOST), "1: GPU 1: GPU is lost"),
        (rows(ONE, warning=HANDLE), f"1: {HANDLE}"),
        (rows(ONE, LOST, warning="exit status 15"), "1: GPU 1: GPU is lost; exit status 15"),
    ],
)
def test_a_lost_gpu_is_missing_and_told_once(facts: dict[str, Any], found: str) -> None:
    finding = only_finding(
        make_fleet({"node2": facts}, everywhere=WELL, host={"gpus": 2}), "gpu-count", "node2"
    )
    assert (finding.severity, finding.found) == (Severity.FAIL, found)


def test_a_warning_where_no_gpus_are_wanted() -> None:
    fleet = make_fleet({"node2": rows(warning=INFOROM)}, count=2)
    assert texts(findings(fleet)) == ["gpu-warning node2 warn"]
