"""Fleets of made-up facts, for tests of checks: healthy ones, to be changed in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fix_style import complaint

from mnt.errors import HostError
from mnt.facts.fleet import FleetFacts
from mnt.facts.host import Account, HostFacts, Interface, Interpreter, Memory, OsRelease, Space
from mnt.facts.system import Artifacts, BuildLock, Logind, OwnProcesses, Release, Resolved, Session
from mnt.inventory.model import Host, Inventory, Network
from mnt.network.decision import decide
from mnt.preflight.findings import Finding
from mnt.preflight.registry import Check, all_checks
from mnt.preflight.report import Report, run_checks

PYTHON = "/shared/env/bin/python"
GIB = 2**30


def python(version: str = "3.11.2") -> Interpreter:
    return Interpreter((PYTHON,), True, version, PYTHON)


def nic(name: str, *ipv4: str, up: bool = True, carrier: bool | None = True) -> Interface:
    return Interface(name, up=up, carrier=carrier, mtu=1500, ipv4=ipv4, loopback=name == "lo")


# As Debian 12 has it, with its defaults and in a session of logind's; only memlock was raised.
SESSION = Session(
    umask=0o022,
    path="/usr/local/bin:/usr/bin:/bin:/usr/games",
    nofile=1024,
    memlock=None,
    scope="session-5.scope",
    shell_seconds=0.05,
    python_seconds=0.1,
)
LOGIND = Logind(
    booted=True, defaults={"KillUserProcesses": "no", "KillExcludeUsers": "root", "RemoveIPC": "yes"}
)
SHM = Space(size=32 * GIB, free=32 * GIB, inodes=1000000, inodes_free=999999)
MEMORY = Memory(total=64 * GIB, available=60 * GIB, swap=GIB, swap_free=GIB, shm=SHM)


def healthy(number: int) -> HostFacts:
    """A host with torch, without GPUs; its NIC has an address in 10.0.0.0/24."""
    return HostFacts(
        hostname=f"node{number}",
        os=OsRelease("debian", "12"),
        login=Account(1000, "ubuntu", "/home/ubuntu", "/bin/bash"),
        python=python(),
        packages={"torch": "2.13.0+cpu", "transformers": "5.1.0"},
        torch_cuda="none",
        interfaces=(nic("lo", "127.0.0.1/8"), nic(f"eth{number}", f"10.0.0.{number}/24")),
        listeners=(),
        kernel="6.1.0-18-amd64",
        clock_offset=0.01 * number,
        clock_uncertainty=0.02,
        session=SESSION,
        logind=LOGIND,
        memory=MEMORY,
        processes=OwnProcesses(),
        artifacts=Artifacts(
            Release("20260101-120000-0badcafe", whole=True), (BuildLock("/x/lock", age=5.0),)
        ),
        resolved=Resolved((f"10.0.0.{number}",)),
    )


def make_fleet(
    changes: Mapping[str, Mapping[str, Any] | HostError] | None = None,
    *,
    count: int = 4,
    everywhere: Mapping[str, Any] | None = None,
    host: Mapping[str, Any] | None = None,
    mesh: Mapping[str, str | None] | None = None,
    **inventory: Any,
) -> FleetFacts:
    """node1 to node`count`.

    Args:
        changes: by host, the facts that differ from a healthy host's, or why there are none.
        everywhere: facts that all hosts have.
        host: settings of every Host.
        mesh: as FleetFacts has it.
        inventory: settings of the Inventory.
    """
    names = [f"node{number}" for number in range(1, count + 1)]
    hosts = tuple(Host(name, name, **{"python": (PYTHON,), **(host or {})}) for name in names)
    cluster = Inventory("test", "test.yaml", hosts, **{"network": Network(subnet="10.0.0.0/24"), **inventory})
    facts: dict[str, HostFacts] = {}
    errors: dict[str, HostError] = {}
    for number, name in enumerate(names, start=1):
        change = (changes or {}).get(name, {})
        if isinstance(change, HostError):
            errors[name] = change
        else:
            facts[name] = replace(healthy(number), **{**(everywhere or {}), **change})
    return FleetFacts(cluster, hosts, facts, errors, mesh or {})


def judged(fleet: FleetFacts, checks: Sequence[Check] | None = None) -> Report:
    """The report of all checks, or of these. Every fix text in it has the style of mnt/errors.py."""
    report = run_checks(fleet, decide(fleet), all_checks() if checks is None else checks)
    for finding in report.findings:
        assert complaint(finding.fix) is None, (finding.check, finding.fix, complaint(finding.fix))
    return report


def findings(fleet: FleetFacts) -> list[Finding]:
    """What all checks together find."""
    return list(judged(fleet).findings)


def only_finding(fleet: FleetFacts, check: str, *hosts: str) -> Finding:
    """The one finding there must be: of this check, on these hosts."""
    found = findings(fleet)
    assert [(finding.check, finding.hosts) for finding in found] == [(check, hosts)], found
    finding = found[0]
    assert finding.found
    assert finding.expected
    assert finding.fix
    return finding


def texts(found: Sequence[Finding]) -> list[str]:
    """`check hosts severity`, for tables."""
    return [f"{finding.check} {','.join(finding.hosts)} {finding.severity.value}" for finding in found]
