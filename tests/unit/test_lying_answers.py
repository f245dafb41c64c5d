"""One host lies: an error of that host, which names host, place and way out; the others are not affected."""

from __future__ import annotations

import json
import math
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
from fleets import findings, make_fleet, nic
from lying_hosts import WatchedFleet
from network_facts import roce, table
from test_fuzz_answers import Frames, entry, facts_of, honest, staged
from test_fuzz_facts import LIAR, NAMES, inventory

from mnt import ui
from mnt.cli.preflight import _write
from mnt.errors import HostError, OutputError, UsageError
from mnt.facts.host import HostFacts
from mnt.facts.rdma import RdmaFacts
from mnt.facts.system import GpuRow
from mnt.inventory.model import Host, Network
from mnt.network.used import read_used
from mnt.preflight.look import look
from mnt.preflight.nvidia import number, slowdowns
from mnt.preflight.registry import select
from mnt.preflight.report import Report
from mnt.push.manifest import build
from mnt.push.transfer import push
from mnt.push.tree import walk
from mnt.remote.job.failures import exit_code_of, make_failure
from mnt.tasks.job import Jobs
from mnt.tasks.shape import shaped
from mnt.trial.output import Collected, read_trial

HOSTS = tuple(Host(name, name) for name in NAMES)
CLUSTER = replace(inventory(random.Random(1)), hosts=HOSTS, network=Network("tcp", "10.0.0.0/24"))
Change = Callable[[dict[str, Any]], object]


def fleet(program: str, number: int, change: Change) -> WatchedFleet:
    """Where the liar changes its frame of that number of a program; its answer is the last frame."""

    def lie(host: str, name: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        for at, (kind, value) in enumerate(honest(host, name, args, stdin)):
            document = json.loads(json.dumps(value))
            if (name, at) == (program, number):
                change(document)
            yield kind, document

    return WatchedFleet(HOSTS, {**dict.fromkeys(NAMES, honest), LIAR: lie})


def looked(program: str, number: int, change: Change) -> Report:
    with fleet(program, number, change) as hosts:
        return look(hosts, CLUSTER, HOSTS, select())


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda facts: facts["interfaces"][1].update(ipv4=["NaN"]), "interfaces[1]"),
        (lambda facts: facts["interfaces"][1].update(ipv4=["10.0.0.2"]), "interfaces[1]"),
        (lambda facts: facts["interfaces"][1].update(ipv6=["10.0.0.2/24"]), "interfaces[1]"),
        (lambda facts: facts["interfaces"][1].update(ipv4=["10.0.0.2/33"]), "interfaces[1]"),
        (lambda facts: facts["interfaces"][1].update(name="eth0 10.0.0.1"), "interfaces[1].name"),
        (lambda facts: facts["interfaces"][1].update(mtu=-1), "interfaces[1].mtu"),
        (lambda facts: facts["interfaces"][1].update(ipv4=["10.0.0.2/24"] * 65), "interfaces[1].ipv4"),
        (lambda facts: facts.update(interfaces=facts["interfaces"][:1] * 385), "interfaces"),
        (lambda facts: facts["resolved"].update(addresses=["NaN"]), "resolved"),
        (lambda facts: facts["resolved"].update(addresses=["10.0.0.2"] * 65), "resolved.addresses"),
        (lambda facts: facts.pop("python"), "which Python runs it"),
        (lambda facts: facts.update(hostname="\ud800"), "hostname"),
        (lambda facts: facts["packages"].update({"\ud800": "1"}), "packages"),
        (lambda facts: facts["packages"].update(torch="9" * 5000), "packages.torch"),
        (lambda facts: facts["session"].update(umask=-1), "session.umask"),
        (
            lambda facts: facts["processes"]["leftovers"][0].update(pids=[2**40]),
            "processes.leftovers[0].pids[0]",
        ),
        (lambda facts: facts["rdma"]["devices"][0].update(name="mlx5_0:1:2"), "rdma.devices[0].name"),
    ],
)
def test_a_fact_that_cannot_be(change: Change, place: str) -> None:
    report = looked("probe.probe", 1, change)
    (host, error), *others = report.fleet.errors.items()
    assert (host, error.host, error.phase, others) == (LIAR, LIAR, "answer", [])
    assert place in error.message
    assert len(error.message) < 600
    assert error.fix
    assert report.fleet.facts.keys() == set(NAMES) - {LIAR}
    assert len(report.fleet.reach.pairs) == 3


def test_bytes_of_a_file_name_are_no_lie() -> None:
    """A mount point in Latin-1, as Python reads it."""
    report = looked(
        "probe.probe", 1, lambda facts: facts["mounts"]["/shared"]["stack"][0].update(source="caf\udce9")
    )
    assert not report.fleet.errors


def test_a_clock_outside_of_the_calendar() -> None:
    report = looked("probe.probe", 0, lambda frame: frame.update(time=1e300))
    assert report.fleet.errors.keys() == {LIAR}


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame["reached"].update(node9=frame["reached"]["node1"]),
        lambda frame: frame["reached"].update({LIAR: frame["reached"]["node1"]}),
        lambda frame: frame["reached"]["node1"].update(latency="fast"),
        lambda frame: frame["reached"]["node1"].update(ports={"x": "ok"}),
        lambda frame: frame["reached"]["node1"].update(no_route="\ud800"),
    ],
)
def test_whom_it_reaches(change: Change) -> None:
    reach = looked("net.reach", 1, change).fleet.reach
    assert (reach.errors.keys(), reach.pairs.keys()) == ({LIAR}, set(NAMES) - {LIAR})


def test_it_sees_files_of_which_nobody_asked() -> None:
    seen = looked("probe.visible", 0, lambda answer: answer["seen"].pop("/shared")).fleet.visibility[
        "/shared"
    ]
    assert {host for host, each in seen.sightings.items() if each["error"]} == {LIAR}


def test_a_master_that_logs_in_to_nobody_we_know() -> None:
    def lie(host: str, name: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        if name == "ssh.mesh":
            yield "answer", {"results": {"node9": {"ok": True, "error": None}}}
        else:
            yield from honest(host, name, args, stdin)

    with WatchedFleet(HOSTS, {**dict.fromkeys(NAMES, honest), "node1": lie}) as hosts:
        mesh = look(hosts, CLUSTER, HOSTS, select()).fleet.mesh
    assert mesh.keys() == set(NAMES[1:])
    assert all("does not answer what was asked" in str(error) for error in mesh.values())


@pytest.mark.parametrize("frames", [[], [("error", {})], [("frame", [])]])
def test_a_program_that_should_have_been_held(frames: list[tuple[str, Any]]) -> None:
    """It ends, or sends nonsense, instead of its first frame."""

    def lie(host: str, name: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        yield from frames
        yield "answer", {}

    with WatchedFleet(HOSTS[:1], {"node1": lie}) as hosts:
        hosts.run(staged)
    assert hosts.failed.keys() == {"node1"}


# --- what is made of facts ---------------------------------------------------------------------------------


def test_interfaces_that_are_under_each_other() -> None:
    lowers = {"eth0": ("bond0",), "bond0": ("eth0", "bond0"), "x": ("eth0",)}
    rdma = RdmaFacts((roce("mlx5_0", "bond0", table("bond0", "10.0.0.1")),), lowers)
    assert [device.name for device in rdma.carrying("eth0")] == ["mlx5_0"]
    deep = {f"i{level}": (f"i{level + 1}", f"i{level + 1}") for level in range(3000)}
    assert RdmaFacts((), deep).carrying("i0") == ()


def test_thousands_of_nics_in_one_subnet() -> None:
    many = tuple(nic(f"e{n}", f"10.1.{n >> 8}.{n & 255}/16") for n in range(4000))
    nics = (*many, nic("eth2", "10.0.0.2/24"))
    found = findings(make_fleet({"node2": {"interfaces": nics}}))
    assert sum(each.check == "subnet-overlap" for each in found) == 3999


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("10.0.0.1/24", "10.0.0.2/24", "10.0.0.0/24"),
        ("10.0.0.1/16", "10.0.0.2/24", "10.0.0.0/24"),
        ("10.0.1.1/16", "10.0.0.2/24", None),
        ("10.0.0.1/32", "10.0.0.1/32", None),
        ("10.0.0.1/0", "10.0.0.1/31", "10.0.0.0/31"),
        ("10.0.0.1/24", "10.0.1.1/24", None),
    ],
)
def test_subnets_that_overlap(one: str, other: str, shared: str | None) -> None:
    nics = {"node2": {"interfaces": (nic("a", one), nic("b", other), nic("eth2", "10.9.0.2/24"))}}
    found = [each.message for each in findings(make_fleet(nics)) if each.check == "subnet-overlap"]
    assert found == ([f"a and b are both in {shared}"] if shared else [])


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "0x" + "f" * 1000, "0x", "1" * 1000])
def test_a_number_of_nvidia_smi_that_is_none(text: str) -> None:
    assert number(text) is None
    assert slowdowns(GpuRow("0", event_reasons=text)) == []


def test_files_with_surrogates(tmp_path: Path) -> None:
    report = looked("probe.probe", 1, lambda facts: facts.update(kernel="caf\udce9"))
    assert "caf\udce9" in "".join(finding.message for finding in report.findings)
    html, junit = tmp_path / "page.html", tmp_path / "junit.xml"
    html.write_text("before")
    _write(report, 1.0, junit, html)
    for file in (html, junit):
        assert "caf\ufffd" in file.read_text(encoding="utf-8")
    assert sorted(tmp_path.iterdir()) == [junit, html]


def test_a_document_with_surrogates(capsys: pytest.CaptureFixture[str]) -> None:
    ui.document({"a\udc80": ["\ud800", "\\ud800", "é", "\U0001f4a9"]})
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert json.loads(printed) == {"a\ufffd": ["\ufffd", "\\ud800", "é", "\U0001f4a9"]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        ui.document({"a": math.nan})


@pytest.mark.parametrize("file", ["/dev/full", "{}/missing/x"])
def test_a_file_that_cannot_be_written(tmp_path: Path, file: str) -> None:
    wrong = OutputError if file == "/dev/full" else UsageError
    with pytest.raises(wrong, match="cannot be written"):
        ui.write_file(file.format(tmp_path), "text")
    assert list(tmp_path.iterdir()) == []


# --- jobs, pushes, trials ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"state": "exploded"}, "state"),
        ({"created": 1e300}, "created"),
        ({"ended": -1.0}, "ended"),
        ({"exit_code": 10**30}, "exit_code"),
        ({"failure": {"message": "x"}}, "failure"),
        ({"failure": {**entry(LIAR)["failure"], "time": 1e300}}, "failure.time"),
        ({"nodes": [{"host": "a\nb", "node_rank": 0, "nproc": 1}]}, "nodes[0].host"),
        ({"nodes": [{"host": "b", "node_rank": -1, "nproc": 1}]}, "nodes[0].node_rank"),
        ({"master": {"addr": "10.0.0.1", "port": 0}}, "master.port"),
        ({"master": {"addr": "$(x)", "port": 1}}, "master.addr"),
        ({"peer": "\ud800"}, "peer"),
        ({"job": "../x"}, "job"),
    ],
)
def test_an_entry_that_cannot_be(change: dict[str, Any], place: str) -> None:
    said = {"now": 1.7e9, "jobs": [{**entry(LIAR), **change}]}
    with pytest.raises(HostError, match=r"node2: answer: ") as caught:
        shaped(LIAR, said, Jobs)
    assert f"jobs[0].{place}: " in caught.value.message
    assert caught.value.fix


def test_a_failure_of_what_a_job_has_written() -> None:
    failure = make_failure("\ud800" * 9999, 10**9, traceback="x\udfff", time=math.nan, rank=1)
    shaped(LIAR, {"now": 1.0, "jobs": [{**entry(LIAR), "failure": failure}]}, Jobs)
    assert (failure["time"], failure["exit_code"], failure["traceback"]) == (None, 255, "x?")
    assert (exit_code_of(-(10**9)), exit_code_of(-9), exit_code_of(3)) == (255, 137, 3)


@pytest.mark.parametrize("id", ["../../home", "new", "20260101-120000-0badcaf\n", "20260101-120000-0badcafé"])
def test_no_host_names_the_release(tmp_path: Path, id: str) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    with fleet("push.receive", 2, lambda frame: frame.update(holds={id: True}, taken=[id])) as hosts:
        result = push(hosts, tmp_path, build(walk(tmp_path)))
    assert hosts.failed.keys() == {LIAR}
    assert not result.ok
    assert {host: each.status for host, each in result.hosts.items() if each.status == "failed"} == {
        LIAR: "failed"
    }
    assert result.release is None


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{",
        '{"event": "measured", "bytes": 4096, "seconds": 0}',
        '{"event": "measured", "bytes": 4096, "seconds": 1e-320}',
        '{"event": "imported", "backend": "nccl", "seconds": 1e300}',
        '{"event": "sockets", "connections": [["NaN", ""]]}',
        '{"event": "sockets", "connections": [["fe80::1%a b", ""]]}',
        '{"event": "sockets", "connections": [["10.0.0.1", "fe80::1%$(x)"]]}',
        '{"event": "wrong", "sum": "\\ud800", "expected": 4}',
        '{"event": "exploded"}',
        "[" * 100000,
    ],
)
def test_a_rank_that_prints_nonsense(line: str) -> None:
    good = 'p {"event": "imported", "backend": "gloo", "seconds": 1.0}\np {"event": "done", "world": 2}'
    trial = read_trial(("node1", LIAR), {"node1": good, LIAR: f"p {line}\np {line}\n{good}"}, "p ", None, 2)
    assert trial.culprit is not None
    assert trial.culprit.host == LIAR
    assert trial.import_seconds.keys() == {"node1", LIAR}


def test_a_host_that_prints_without_end() -> None:
    collected = Collected([LIAR], "p ")
    for piece in (
        *["x" * 70000 + "\n"] * 50,
        *["p " + "y" * 70000] * 50,
        "\np {}\n",
        *["NCCL INFO NET/IB\n"] * 99999,
    ):
        collected.feed(LIAR, piece)
    collected.feed(LIAR, "the end")
    assert len(collected[LIAR]) < 1 << 18
    assert "p {}\n" in collected[LIAR]
    assert "x" not in collected[LIAR]


@pytest.mark.parametrize(
    "line",
    [
        "NCCL INFO NET/IB : " + "IbDev 1 Port 1 qpn 1 " * 40000,
        "NCCL INFO NET/Socket : Using [0]" + "a:[0]" * 200000,
        "NCCL INFO NET/IB : Using [0]" + "a" * 1000000,
    ],
)
def test_a_line_that_makes_a_pattern_slow(line: str) -> None:
    """Without a limit each takes minutes or more."""
    trial = read_trial(("node1",), {"node1": "\n".join([line] * 10)}, "p ", None, 2)
    read_used(replace(trial, backends={"node1": "nccl"}), "node1", ())


def test_output_that_makes_a_pattern_slow() -> None:
    assert not make_failure("x", -signal.SIGABRT, stderr="gloo" * 60000)["victim"]
    line = "NVRM: Xid (" * 100000
    log = {"lines": [{"age": 1.0, "text": line}]}
    with pytest.raises(HostError, match=r"kernel_log\.lines\[0\]\.text"):
        HostFacts.parse(LIAR, {**facts_of(LIAR), "gpus": {"kernel_log": log}})
