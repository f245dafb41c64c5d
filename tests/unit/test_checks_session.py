"""Checks of the session: an ordinary Debian host is well, and each way not to be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fleets import LOGIND, SESSION, findings, make_fleet, only_finding, texts

from mnt.facts.host import Account
from mnt.facts.rdma import Device, RdmaFacts
from mnt.facts.system import Logind
from mnt.inventory.model import Network
from mnt.preflight.findings import Severity

MIB = 2**20


def session(**changes: Any) -> Any:
    return {"session": replace(SESSION, **changes)}


@pytest.mark.parametrize(
    ("odd", "check", "severity", "found"),
    [
        (session(shell_seconds=4.0), "shell-slow", "warn", "4.0 s until /bin/bash has started Python"),
        ({"noise": "\nWelcome to node2!\nsecond line\n"}, "shell-noise", "warn", "Welcome to node2!"),
        (session(umask=0o077), "umask", "warn", "0077"),
        (session(path=""), "session-path", "fail", "empty"),
        (session(path="/opt/conda/bin"), "session-path", "fail", "/opt/conda/bin"),
        (session(path="/usr/bin:.:/bin"), "session-path", "warn", "/usr/bin:.:/bin"),
        (session(path="/usr/bin:"), "session-path", "warn", "/usr/bin:"),
        (session(nofile=256), "nofile", "warn", "256 files"),
    ],
)
def test_one_odd_session(odd: Any, check: str, severity: str, found: str) -> None:
    finding = only_finding(make_fleet({"node2": odd}), check, "node2")
    assert (finding.severity.value, finding.found) == (severity, found)


@pytest.mark.parametrize(
    "odd",
    [
        session(shell_seconds=3.9, python_seconds=1.0),  # a host that is busy
        session(shell_seconds=None, python_seconds=None),  # a container that hides the shell
        session(nofile=None),
        {"noise": "\n"},
        session(memlock=8 * MIB),  # Debian's default, and no RDMA here
        session(path="/usr/bin/:/opt/x"),
        {"session": None},
    ],
)
def test_sessions_that_are_well_or_not_known(odd: Any) -> None:
    assert findings(make_fleet({"node2": odd})) == []


def test_a_umask_that_takes_files_from_their_user_fails_everywhere() -> None:
    fleet = make_fleet(everywhere=session(umask=0o777))
    assert texts(findings(fleet)) == ["umask node1,node2,node3,node4 fail"]


def test_two_umasks_are_a_tie() -> None:
    finding = only_finding(make_fleet({"node2": session(umask=0o002)}, count=2), "umask", "node1", "node2")
    assert finding.found == "0022 on node1; 0002 on node2"


def test_a_large_cluster_needs_more_files() -> None:
    finding = only_finding(
        make_fleet(count=2, host={"gpus": 256}, everywhere={"gpus": None}), "nofile", "node1", "node2"
    )
    assert finding.message == "a process may open only 1024 files; 512 ranks need 2048"


def test_limits_that_a_container_has_from_outside() -> None:
    """Root there cannot raise them: no playbook mends it, and the cause is said."""
    fixed = session(nofile=256, nofile_most=512, memlock=8 * MIB, memlock_most=8 * MIB)
    fleet = make_fleet({"node2": fixed}, network=Network(mode="rdma", subnet="10.0.0.0/24"))
    found = {each.check: each for each in findings(fleet) if each.check in ("nofile", "memlock")}
    assert [*found] == ["memlock", "nofile"]
    for name, fix in {"nofile": "--ulimit nofile=1048576", "memlock": "--ulimit memlock=-1"}.items():
        assert "no CAP_SYS_RESOURCE, as in a container" in found[name].message
        assert found[name].fix.endswith(fix)
        assert found[name].playbook is None
    enough = session(nofile=256, nofile_most=1 << 20)
    assert only_finding(make_fleet({"node2": enough}), "nofile", "node2").playbook == "tuning"


# --- memlock ---------------------------------------------------------------------------------------------

LITTLE = session(memlock=8 * MIB)


def test_memlock_fails_where_jobs_train_over_rdma() -> None:
    fleet = make_fleet({"node2": LITTLE}, network=Network(mode="rdma", subnet="10.0.0.0/24"))
    (finding,) = [finding for finding in findings(fleet) if finding.check == "memlock"]
    assert (finding.severity, finding.hosts, finding.found) == (Severity.FAIL, ("node2",), "8192 KiB")


def test_memlock_is_worth_knowing_where_there_is_a_device_that_is_not_used() -> None:
    rdma = {"rdma": RdmaFacts(devices=(Device("mlx5_0"),))}
    fleet = make_fleet({"node2": {**LITTLE, **rdma}}, network=Network(mode="tcp", subnet="10.0.0.0/24"))
    assert only_finding(fleet, "memlock", "node2").severity is Severity.INFO


# --- logind ----------------------------------------------------------------------------------------------


def logind(lingers: bool = False, scope: str | None = "session-5.scope", **settings: str) -> dict[str, Any]:
    return {**session(scope=scope), "logind": replace(LOGIND, settings=settings, lingers=lingers)}


UPSTREAM = Logind(booted=True, defaults={"KillUserProcesses": "yes", "RemoveIPC": "yes"})
ROOT = {"login": Account(0, "root", "/root", "/bin/bash")}


@pytest.mark.parametrize(
    ("odd", "found"),
    [
        (logind(KillUserProcesses="yes"), "KillUserProcesses=yes for ubuntu"),
        (logind(KillUserProcesses="yes", lingers=True), "KillUserProcesses=yes for ubuntu"),
        (logind(KillUserProcesses="1", KillExcludeUsers="root eve"), "KillUserProcesses=1 for ubuntu"),
        (logind(KillUserProcesses="no", KillOnlyUsers="eve ubuntu"), "KillOnlyUsers=eve ubuntu for ubuntu"),
        ({"logind": UPSTREAM}, "default for ubuntu"),
        (logind(RemoveIPC="yes", scope=None), "RemoveIPC=yes, and ubuntu does not linger"),
        (logind(scope=None), "RemoveIPC=yes, and ubuntu does not linger"),
    ],
)
def test_what_a_detached_job_does_not_outlive(odd: dict[str, Any], found: str) -> None:
    finding = only_finding(make_fleet({"node2": odd}), "session-linger", "node2")
    assert finding.playbook == ("tuning" if "RemoveIPC" in finding.found else None)
    assert (finding.severity, finding.found) == (Severity.WARN, found)


@pytest.mark.parametrize(
    "odd",
    [
        logind(),  # RemoveIPC is Debian's default, and the job's own session holds it off
        logind(KillUserProcesses="yes", KillExcludeUsers="root ubuntu"),
        logind(KillUserProcesses="yes", KillOnlyUsers="eve"),
        logind(RemoveIPC="yes", scope=None, lingers=True),
        logind(RemoveIPC="no", scope=None),
        {**logind(KillUserProcesses="yes", RemoveIPC="yes", scope=None), **ROOT},
        {**logind(RemoveIPC="yes", scope=None), "login": Account(998, "slurm")},
        {**session(scope=None), "logind": replace(UPSTREAM, booted=False)},  # a container
    ],
)
def test_what_a_detached_job_outlives(odd: dict[str, Any]) -> None:
    assert findings(make_fleet({"node2": odd})) == []
