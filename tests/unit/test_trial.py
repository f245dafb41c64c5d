"""What `--deep` makes of a job's output, and how its checks judge that."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from fleets import findings, make_fleet, only_finding, texts

from mnt.facts.trial import Measurement, Trial, TrialCulprit
from mnt.network.decision import decide
from mnt.network.used import read_used
from mnt.preflight.findings import Finding, Severity
from mnt.preflight.registry import Needs, all_checks, select
from mnt.preflight.report import Report
from mnt.remote.trial.allreduce import connections
from mnt.trial.look import obstacle, trial_checks
from mnt.trial.output import read_trial

PREFIX = "mnt-0123 "
HOSTS = ("node1", "node2")
IMPORTED = {"event": "imported", "torch": "2.13.0", "seconds": 2.0, "backend": "gloo"}
DONE = {"event": "done", "world": 2}


def printed(*events: dict[str, Any], rank: int = 0, noise: str = "") -> str:
    """As torchrun's --tee prints it."""
    return noise + "".join(f"[rank{rank}] {PREFIX}{json.dumps(event)}\n" for event in events)


def test_a_trial_that_came_to_its_end() -> None:
    measured = {"event": "measured", "bytes": 1 << 20, "seconds": 0.001}
    output = {
        "node1": printed(IMPORTED, measured, DONE, noise="W1127 a warning\n"),
        "node2": printed({**IMPORTED, "seconds": 3.0}, DONE, rank=1),
    }
    trial = read_trial(HOSTS, output, PREFIX, None, 2)
    assert trial.problem is None
    assert (trial.backend, trial.import_seconds) == ("gloo", {"node1": 2.0, "node2": 3.0})
    assert trial.measurements == (Measurement(1 << 20, 0.001, pytest.approx(1.048576)),)
    assert trial.document()["ok"]


def test_bandwidth_is_that_of_the_bus() -> None:
    """nccl-tests, doc/PERFORMANCE.md: algorithm bandwidth times 2(n-1)/n."""
    measured = {"event": "measured", "bytes": 10**9, "seconds": 1.0}
    trial = read_trial(HOSTS, {"node1": printed(measured, DONE)}, PREFIX, None, 8)
    assert trial.measurements[0].bandwidth == pytest.approx(1.75)


SOCKETS = """\
vm:643:643 [0] NCCL INFO Bootstrap: Using eth0:192.0.2.2<0>
vm:643:643 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so
vm:643:643 [0] NCCL INFO NET/IB : No device found.
vm:643:643 [0] NCCL INFO NET/IB : Using [RO]; OOB eth0:192.0.2.2<0>
vm:643:643 [0] NCCL INFO Failed to initialize NET plugin IB
vm:643:643 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.2<0>
vm:643:643 [0] NCCL INFO Assigned NET plugin Socket to comm
vm:643:643 [0] NCCL INFO Using network Socket
vm:644:644 [1] NCCL INFO Using network Socket
vm:644:644 [1] NCCL INFO NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eth0'
"""  # of NCCL 2.28.9 on two GPUs without an HCA
ROCE = """\
node1:41:90 [0] NCCL INFO NET/IB : Using [0]mlx5_6:1/RoCE [1]mlx5_7:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
node1:41:90 [0] NCCL INFO Using network IB
"""


@pytest.mark.parametrize(
    ("said", "took"),
    [
        ("", None),
        (SOCKETS, ("NET/Socket : Using [0]eth0:192.0.2.2<0>", "Using network Socket")),
        (
            ROCE,
            (
                "NET/IB : Using [0]mlx5_6:1/RoCE [1]mlx5_7:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
                "Using network IB",
            ),
        ),
    ],
)
def test_what_nccl_took(said: str, took: tuple[str, ...] | None) -> None:
    trial = read_trial(HOSTS, {"node1": printed(DONE, noise=said)}, PREFIX, None, 2)
    assert trial.nccl_lines.get("node1") == took


CONNECTED = (
    "node1:41:95 [0] NCCL INFO NET/IB: NCCL Dev 0 IbDev 1 Port 1 qpn 272 mtu 5 GID 3 (0/100000AFFFF0000) "
    "fifoRkey=0x1c4b fifoLkey=0x1c4b\n"
)  # by the format in NCCL 2.28's source


@pytest.mark.parametrize(
    ("said", "gids"),
    [
        (SOCKETS, {}),
        (ROCE, {}),
        (CONNECTED, {1: 3}),
        (CONNECTED.replace("IbDev 1", "IbDev 0") + CONNECTED, {0: 3, 1: 3}),
        (CONNECTED.replace("GID 3 (0/100000AFFFF0000)", "LID 7 subnet-prefix 1  FLID 0"), {}),
        ("h:1:1 [0] NCCL INFO NET/IB: Dev 2 Port 1 qpn 1 mtu 3 GID 0 (80FE/1)\n", {2: 0}),  # 2.7
    ],
)
def test_the_gids_that_nccl_connected_with(said: str, gids: dict[int, int]) -> None:
    trial = read_trial(HOSTS, {"node1": printed(DONE, noise=said)}, PREFIX, None, 2)
    assert trial.gids.get("node1", {}) == gids


def test_the_sockets_of_all_ranks_of_a_host() -> None:
    first, second = (
        {"event": "sockets", "connections": [["10.0.0.1", ""], ["10.0.0.1", peer]]}
        for peer in ("10.0.0.2", "10.0.0.3")
    )
    trial = read_trial(HOSTS, {"node1": printed(first, second, DONE)}, PREFIX, None, 4)
    listens, *peers = trial.sockets["node1"]
    assert (listens, peers) == (("10.0.0.1", ""), [("10.0.0.1", "10.0.0.2"), ("10.0.0.1", "10.0.0.3")])


# Of a rank of two (torch 2.13, gloo), the rendezvous on port 29500; and another process's socket (inode 9).
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100000A:A2C5 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0
   1: 0100000A:A2C5 0200000A:C001 01 00000000:00000000 00:00000000 00000000  1000        0 2 1 0 20 4
   2: 0100000A:C1F0 0100000A:733C 01 00000000:00000000 00:00000000 00000000  1000        0 3 1 0 20 4
   3: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 9 1 0 100 0
   4: 0100000A:C1F4 0300000A:C002 06 00000000:00000000 03:00000F00 00000000     0        0 0 3 0
"""
TCP6 = """\
  sl  local_address                         remote_address                        st
   0: 0000000000000000FFFF00000100000A:C1F2 0000000000000000FFFF00000200000A:C00A 01 0:0 0:0 0 1000 0 4 1 0
   1: 000080FE000000000000000001000000:C1F2 00000000000000000000000000000000:0000 0A 0:0 0:0 0 1000 0 5 1 0
"""


@pytest.mark.parametrize(
    ("table", "own", "rendezvous", "found"),
    [
        (TCP, "123", 29500, {("10.0.0.1", ""), ("10.0.0.1", "10.0.0.2")}),
        (TCP, "3", 1, {("10.0.0.1", "10.0.0.1")}),
        (TCP, "1", 0xA2C5, set()),
        (TCP, "9", 29500, {("0.0.0.0", "")}),
        (TCP, "", 29500, set()),
        (TCP6, "45", 29500, {("10.0.0.1", "10.0.0.2"), ("fe80::1", "")}),
        (TCP.splitlines()[0], "1", 29500, set()),
    ],
)
def test_a_ranks_own_sockets(table: str, own: str, rendezvous: int, found: set[tuple[str, str]]) -> None:
    assert connections(table, own, rendezvous) == found


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"without_torch": ("node2", "node3")}, "node[2-3]: torch is not installed"),
        ({"obstacle": "node2: eth0 is down (nic)"}, "not tried: node2: eth0 is down (nic)"),
        (
            {"culprit": TrialCulprit("node3", "ImportError: x\nTraceback")},
            "node3: the trial failed: ImportError: x",
        ),
        ({"culprit": TrialCulprit("node3", "")}, "node3: the trial failed: "),
        (
            {"wrong_sums": {"node2": "1 instead of 4"}},
            "a sum over all ranks is wrong: 1 instead of 4, as measured by node2",
        ),
    ],
)
def test_the_problem_of_a_trial_is_one_line(changes: dict[str, Any], problem: str | None) -> None:
    found = replace(WELL, **changes).problem
    assert (found is None) == (problem is None)
    if found and problem:
        assert found[0].startswith(problem)
        assert "\n" not in found[0]


def test_a_job_that_ended_without_a_word_has_not_passed() -> None:
    trial = read_trial(HOSTS, {"node1": "", "node2": ""}, PREFIX, None, 2)
    assert trial.culprit == TrialCulprit("node1", "it ended without a result")


def test_a_wrong_sum_names_its_host() -> None:
    wrong = {"event": "wrong", "bytes": 4096, "sum": 1.0, "expected": 2}
    trial = read_trial(HOSTS, {"node1": printed(DONE), "node2": printed(wrong, wrong, DONE)}, PREFIX, None, 2)
    assert trial.wrong_sums == {"node2": "1 instead of 2"}
    assert trial.culprit is None
    assert not trial.document()["ok"]


# --- the checks ------------------------------------------------------------------------------------------

WELL = Trial(("node1", "node2", "node3", "node4"), import_seconds=dict.fromkeys(["node1", "node2"], 1.0))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"without_torch": ("node2", "node3")}, ["import-torch node2,node3 fail"]),
        ({"culprit": TrialCulprit("node3", "ImportError: libcudart.so.13")}, ["import-torch node3 fail"]),
        ({"culprit": TrialCulprit("node2", "gloo: connection refused")}, ["all-reduce node2 fail"]),
        ({"wrong_sums": {"node2": "1 instead of 4"}}, ["all-reduce node1,node2,node3,node4 fail"]),
        ({"obstacle": "nic fails already"}, ["all-reduce node1,node2,node3,node4 info"]),
    ],
)
def test_what_a_trial_says(changes: dict[str, Any], found: list[str]) -> None:
    assert texts(findings(replace(make_fleet(), trial=replace(WELL, **changes)))) == found


def test_a_host_names_its_own_backend_only() -> None:
    """node2 says nccl; the sockets of node1 are judged as those of gloo."""
    sockets = {"event": "sockets", "connections": [["10.0.0.1", "10.0.0.2"]]}
    output = {
        "node1": printed(IMPORTED, sockets, DONE),
        "node2": printed({**IMPORTED, "backend": "nccl"}, DONE, rank=1),
    }
    trial = read_trial(HOSTS, output, PREFIX, None, 2)
    assert (trial.backend, trial.backends) == ("gloo", {"node1": "gloo", "node2": "nccl"})
    used = read_used(trial, "node1", ())
    assert used is not None
    assert used.backend == "gloo"


@pytest.mark.parametrize("imported", [(), ("node2",), ("node1", "node2")])
def test_of_hosts_that_are_not_done_none_is_singled_out(imported: tuple[str, ...]) -> None:
    late = TrialCulprit("node1", "it was not done within 180 s", ("node2",))
    trial = replace(WELL, culprit=late, import_seconds=dict.fromkeys(imported, 1.0))
    check = "all-reduce" if len(imported) == 2 else "import-torch"
    assert texts(findings(replace(make_fleet(), trial=trial))) == [f"{check} node1,node2 fail"]
    assert trial.problem is not None
    assert trial.problem[0].startswith("node[1-2]: the trial failed: it was not done")


def test_a_name_that_is_no_host_breaks_no_report() -> None:
    trial = replace(WELL, culprit=TrialCulprit("node9", "x"))
    assert texts(findings(replace(make_fleet(), trial=trial))) == ["import-torch  fail"]


def test_a_trial_that_was_not_made_judges_nobody() -> None:
    fleet = replace(make_fleet(), trial=replace(WELL, obstacle="ssh fails already"))
    assert only_finding(fleet, "all-reduce", *WELL.hosts).severity is Severity.INFO
    assert all(not check.judges(fleet) for check in all_checks() if check.needs is Needs.TRIAL)


@pytest.mark.parametrize(
    ("options", "among"),
    [
        ({}, False),
        ({"deep": True}, True),
        ({"only": ["nic"]}, False),
        ({"only": ["nic"], "deep": True}, True),
    ],
)
def test_a_trial_is_made_when_it_is_asked_for(options: dict[str, Any], among: bool) -> None:
    assert ("all-reduce" in [check.id for check in select(**options)]) == among


def test_naming_a_check_of_the_trial_asks_for_it() -> None:
    assert [check.id for check in select(only=["all-reduce"])] == ["ssh", "host-key", "all-reduce"]


@pytest.mark.parametrize(
    ("id", "severity", "runs"),
    [
        ("nic-reach", Severity.FAIL, False),
        ("torch-version", Severity.FAIL, False),
        ("torch-version", Severity.WARN, True),
        ("ssh-mesh", Severity.FAIL, True),
        ("storage-visible", Severity.FAIL, True),
    ],
)
def test_the_failures_that_prevent_a_trial(id: str, severity: Severity, runs: bool) -> None:
    facts = make_fleet()
    found = Finding(id, severity, ("node1",), "a", "b", "it is broken", "mend it")
    report = Report(facts, decide(facts), select(deep=True), (found,))
    assert obstacle(report) == (None if runs else f"node1: it is broken ({id})")


def test_the_checks_that_can_prevent_a_trial() -> None:
    left_out = {check.id for check in select(deep=True)} - {check.id for check in trial_checks()}
    assert left_out == {"ssh-mesh", "storage-visible"}
