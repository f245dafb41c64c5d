"""What became of a command, as a whole."""

from __future__ import annotations

import pytest

from mnt.errors import HostError
from mnt.run.summary import HostRun, RunSummary

DOWN = HostError("h", "connect", "refused by h port 22")
LATE = HostError("h", "command", "not done within 1 s")


@pytest.mark.parametrize(
    ("run", "status"),
    [
        (HostRun("h", exit_code=0), "ok"),
        (HostRun("h", exit_code=1), "failed"),
        (HostRun("h", error=DOWN), "unreachable"),
        (HostRun("h", error=LATE), "error"),
        (HostRun("h"), "missing"),
    ],
)
def test_status(run: HostRun, status: str) -> None:
    assert run.status == status


@pytest.mark.parametrize(
    ("runs", "interrupted", "code", "failed"),
    [
        ([HostRun("a", exit_code=0), HostRun("b", exit_code=0)], False, 0, []),
        ([HostRun("a", exit_code=3), HostRun("b", exit_code=2)], False, 3, ["a", "b"]),
        ([HostRun("a", exit_code=3), HostRun("b", error=DOWN)], False, 255, ["a", "b"]),
        ([HostRun("a", exit_code=0), HostRun("b")], True, 130, ["b"]),
        ([HostRun("a", exit_code=4), HostRun("b")], False, 4, ["a", "b"]),
        ([HostRun("a", exit_code=255), HostRun("b")], True, 130, ["a", "b"]),
    ],
)
def test_the_largest_exit_code(runs: list[HostRun], interrupted: bool, code: int, failed: list[str]) -> None:
    report = RunSummary({run.host: run for run in runs}, interrupted=interrupted)
    assert (report.exit_code, report.failed) == (code, failed)
    assert report.document()["ok"] == (not failed)


def test_hosts_by_exit_code() -> None:
    codes = {"a": 2, "b": 0, "c": 1, "d": 2}
    report = RunSummary({host: HostRun(host, exit_code=code) for host, code in codes.items()})
    assert report.by_exit_code() == {1: ["c"], 2: ["a", "d"]}


def test_an_error_in_the_document() -> None:
    document = RunSummary({"h": HostRun("h", error=DOWN, seconds=0.5)}).document()
    assert document["hosts"]["h"] == {
        "status": "unreachable",
        "exit_code": None,
        "seconds": 0.5,
        "error": "connect: refused by h port 22",
    }
