"""Checks of memory and clocks, of what earlier jobs left, and of the host's own name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fleets import GIB, MEMORY, SHM, findings, make_fleet, only_finding, texts

from mnt.facts.host import Interface
from mnt.facts.system import Artifacts, BuildLock, Exposed, Leftover, OwnProcesses, Release, Resolved, Zombies
from mnt.preflight.checks.system import HEAD, Offset, reference
from mnt.preflight.findings import Severity

MIB = 2**20

# --- memory ----------------------------------------------------------------------------------------------


def memory(**changes: Any) -> Any:
    return {"memory": replace(MEMORY, **changes)}


def shm(size: int, free: int) -> Any:
    return memory(shm=replace(SHM, size=size, free=free))


@pytest.mark.parametrize(
    ("odd", "check", "severity", "message"),
    [
        (memory(shm=None), "shm", "fail", "nothing is mounted at /dev/shm"),
        (shm(32 * MIB, 32 * MIB), "shm", "fail", "/dev/shm has 32 of 32 MiB free"),
        (shm(64 * MIB, 64 * MIB), "shm", "warn", "/dev/shm has 64 of 64 MiB free"),
        (shm(32 * GIB, 500 * MIB), "shm", "warn", "/dev/shm has 500 of 32768 MiB free"),
        (memory(available=GIB), "memory", "warn", "only 1.0 GiB of 64.0 GiB of memory is available"),
        (memory(swap=16 * GIB, swap_free=8 * GIB), "swap", "warn", "8.0 GiB of memory is swapped out"),
    ],
)
def test_too_little_memory(odd: Any, check: str, severity: str, message: str) -> None:
    finding = only_finding(make_fleet({"node2": odd}), check, "node2")
    assert (finding.severity.value, finding.message) == (severity, message)


@pytest.mark.parametrize(
    ("room", "fix", "playbook"),
    [
        (shm(64 * MIB, 64 * MIB), "remount,size", "tuning"),
        (shm(32 * GIB, 0), "ls -l /dev/shm", None),
        (memory(shm=None), "mount -t tmpfs", "tuning"),
        (memory(shm=replace(SHM, size=64 * MIB, free=64 * MIB), shm_fixed=True), "--shm-size=64g", None),
        (memory(shm=replace(SHM, size=32 * GIB, free=0), shm_fixed=True), "ls -l /dev/shm", None),
    ],
)
def test_the_way_to_more_shared_memory(room: Any, fix: str, playbook: str | None) -> None:
    finding = only_finding(make_fleet({"node2": room}), "shm", "node2")
    assert fix in finding.fix
    assert finding.playbook == playbook


def test_eight_ranks_need_more_shared_memory_than_one() -> None:
    small = {**shm(400 * MIB, 400 * MIB), "gpus": None}
    assert texts(findings(make_fleet(everywhere=small, host={"gpus": 8}, count=1))) == ["shm node1 fail"]


@pytest.mark.parametrize(
    "odd", [memory(swap=16 * GIB, swap_free=15 * GIB), memory(available=None), {"memory": None}]
)
def test_enough_memory_or_unknown(odd: Any) -> None:
    assert findings(make_fleet({"node2": odd})) == []


# --- clocks ----------------------------------------------------------------------------------------------


def clocks(*offsets: float, uncertainty: float = 0.05) -> Any:
    changes = {
        f"node{number}": {"clock_offset": offset, "clock_uncertainty": uncertainty}
        for number, offset in enumerate(offsets, start=1)
    }
    return make_fleet(changes, count=len(offsets))


@pytest.mark.parametrize(
    ("offsets", "blamed"),
    [
        ((0, 0.5, -0.5, 0.9), []),
        ((0, 0, 3, 0), ["clock node3 warn"]),
        ((0, -40, 3, 0), ["clock node2 fail", "clock node3 warn"]),
        ((3600,), ["clock node1 fail"]),
        ((0, 3600), ["clock node2 fail"]),
        # The machine that runs mnt is wrong itself: no host is blamed.
        ((100, 100.2, 100.1), ["clock node1,node2,node3 info"]),
        ((100, 100.2, 100.1, 0), ["clock node4 fail", "clock node1,node2,node3 info"]),
        ((100, 100.2), ["clock node1,node2 info"]),
        # Everyone has another time: ours is as good as any.
        ((50, 100), ["clock node1 fail", "clock node2 fail"]),
    ],
)
def test_whose_clock_is_wrong(offsets: tuple[float, ...], blamed: list[str]) -> None:
    assert texts(findings(clocks(*offsets))) == blamed


def test_a_slow_connection_makes_no_clock_wrong() -> None:
    assert findings(clocks(0, 3, uncertainty=2.5)) == []


def test_a_clock_that_was_not_measured_is_not_judged() -> None:
    fleet = make_fleet({"node2": {"clock_offset": 0.0, "clock_uncertainty": None}})
    assert findings(fleet) == []


def test_a_wrong_clock_is_told_with_its_direction() -> None:
    finding = only_finding(clocks(0, 0, -62.25), "clock", "node3")
    assert finding.message == "the clock is 62.2 s behind"
    assert finding.found == "-62.2 s, plus or minus 0.05 s"


def test_the_head_wins_a_tie() -> None:
    assert reference({"a": Offset(5, 0.1)}) == HEAD


# --- leftovers -------------------------------------------------------------------------------------------


def processes(**found: Any) -> Any:
    return {"processes": OwnProcesses(**found)}


def locks(*ages: float, compiling: bool = False) -> Any:
    found = tuple(BuildLock(f"/shared/torch_extensions/op{i}/lock", age) for i, age in enumerate(ages))
    return {
        "artifacts": Artifacts(Release("20260101-120000-0badcafe", whole=True), found),
        **processes(compiling=compiling),
    }


@pytest.mark.parametrize(
    ("odd", "check", "found", "fix"),
    [
        (
            processes(leftovers=(Leftover("j1", (7, 8, 9, 10, 11, 12), "python train.py"),)),
            "leftovers",
            "6 (pid 7, 8, 9, 10, 11 ..): python train.py",
            "mnt stop j1 -n node2",
        ),
        (processes(zombies=(Zombies(7, "python x.py", 21), Zombies(8, "sh", 3))), "zombies", "21", "kill 7"),
        (
            locks(301),
            "build-lock",
            "/shared/torch_extensions/op0/lock is more than 5 minutes old, and no compiler runs",
            "rm /shared/torch_extensions/op0/lock",
        ),
    ],
)
def test_what_was_left_behind(odd: Any, check: str, found: str, fix: str) -> None:
    finding = only_finding(make_fleet({"node2": odd}), check, "node2")
    assert (finding.severity, finding.found) == (Severity.WARN, found)
    assert fix in finding.fix


def test_a_directory_that_another_user_can_write() -> None:
    exposed = Exposed("all users can write to /srv/code (mode 0777)", "chmod o-w /srv/code")
    odd = {"artifacts": Artifacts(Release("20260101-120000-0badcafe", whole=True), exposed=(exposed,))}
    finding = only_finding(make_fleet({"node2": odd}), "file-owner", "node2")
    assert (finding.severity, finding.message, finding.fix) == (
        Severity.FAIL,
        exposed.message,
        exposed.fix,
    )


@pytest.mark.parametrize(
    "odd",
    [
        processes(zombies=(Zombies(8, "sh", 20),)),
        locks(10, 299),
        locks(4000, compiling=True),
        {"processes": None},
        {"artifacts": None},
    ],
)
def test_what_is_going_on_or_not_known(odd: Any) -> None:
    assert findings(make_fleet({"node2": odd})) == []


def test_a_job_is_stopped_only_where_it_left_something() -> None:
    """On other hosts it may run: one host alone could name it."""
    node2, node3 = (processes(leftovers=(Leftover("j1", (pid,), "x"),)) for pid in (7, 8))
    found = findings(make_fleet({"node2": node2, "node3": node3, "node4": {"processes": None}}))
    assert texts(found) == ["leftovers node2 warn", "leftovers node3 warn"]
    assert {finding.fix for finding in found} == {"mnt stop j1 -n 'node[2-3]'"}


def test_a_lock_on_shared_storage_is_one_finding() -> None:
    assert texts(findings(make_fleet(everywhere=locks(4000)))) == ["build-lock node1,node2,node3,node4 warn"]


def test_a_host_that_says_that_it_builds_hides_no_lock_of_another() -> None:
    builder = locks(4000, compiling=True)
    assert findings(make_fleet(everywhere=builder)) == []  # each by its own word
    finding = only_finding(
        make_fleet({"node4": locks(10, compiling=True), "node2": locks(4000)}), "build-lock", "node2", "node4"
    )
    path = "/shared/torch_extensions/op0/lock"
    assert finding.message == f"an old lock of a torch extension build, which may still run on node4: {path}"
    assert finding.found.endswith("no compiler runs on node2; a compiler runs on node4, by its own word")
    assert finding.fix == f"find the build on node4; if none runs there: rm {path}"


def test_a_problem_that_a_host_has_twice_names_it_once() -> None:
    """Of the workdir and of the directory of jobs, which are in the same one."""
    exposed = Exposed("all users can write to /home (mode 0777)", "sudo chmod o-w /home")
    facts = {"artifacts": Artifacts(Release("20260101-120000-0badcafe", whole=True), exposed=(exposed,) * 2)}
    assert only_finding(make_fleet({"node2": facts}), "file-owner", "node2").fix == "sudo chmod o-w /home"


# --- the host's own name ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resolved", "found"),
    [
        (Resolved(("127.0.1.1",)), "127.0.1.1"),
        (Resolved(("::1", "127.0.0.1")), "::1, 127.0.0.1"),
        (Resolved(("127.0.1.1", "10.0.0.2")), "127.0.1.1, 10.0.0.2"),  # gloo takes the first
        (Resolved(("::1", "10.0.0.2")), "::1, 10.0.0.2"),
        (Resolved(("10.0.0.99", "127.0.0.1", "10.0.0.2")), "10.0.0.99, 127.0.0.1, 10.0.0.2"),  # not its own
        (Resolved(("10.0.0.99",)), "10.0.0.99"),
        (Resolved((), "Name or service not known"), "Name or service not known"),
    ],
)
def test_a_name_that_leads_to_nobody_else(resolved: Resolved, found: str) -> None:
    finding = only_finding(make_fleet({"node2": {"resolved": resolved}}), "hostname-loopback", "node2")
    assert (finding.severity, finding.found) == (Severity.WARN, found)
    assert finding.fix == "in /etc/hosts, remove node2 from all lines, and add the line: 10.0.0.2 node2"


LINK_LOCAL = Interface("eth0", up=True, carrier=True, mtu=1500, ipv4=("10.0.0.2/24",), ipv6=("fe80::1/64",))


@pytest.mark.parametrize(
    ("resolved", "interfaces"),
    [
        (Resolved(("10.0.0.2", "127.0.1.1")), {}),
        (Resolved(("10.0.0.99", "10.0.0.2")), {}),  # gloo skips what the host does not have
        (Resolved(("fe80::1%eth0", "10.0.0.2")), {}),
        (Resolved(("fe80::1%eth0",)), {"interfaces": (LINK_LOCAL,)}),
        (Resolved(("10.0.0.99",)), {"interfaces": ()}),  # unknown
        (None, {}),
    ],
)
def test_a_name_that_leads_to_the_host_or_is_not_known(resolved: Resolved | None, interfaces: Any) -> None:
    assert findings(make_fleet({"node2": {"resolved": resolved, **interfaces}})) == []


@pytest.mark.parametrize("name", ["localhost", "localhost.localdomain", "Localhost4", "ip6-localhost"])
def test_a_host_called_localhost_gets_a_name_of_its_own(name: str) -> None:
    """`localhost` must stay 127.0.0.1."""
    facts = {"hostname": name, "resolved": Resolved(("127.0.0.1",))}
    finding = only_finding(make_fleet({"node2": facts}), "hostname-loopback", "node2")
    assert finding.fix == (
        "give the host a name of its own: echo node2 | sudo tee /etc/hostname && "
        "sudo hostname -F /etc/hostname; then in /etc/hosts, remove node2 from all lines, "
        "and add the line: 10.0.0.2 node2"
    )
