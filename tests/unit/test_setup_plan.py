"""`mnt setup`: what the findings ask for, what Ansible is told, and what its events mean."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from network_facts import host, nic

from mnt.cli.setup import _show
from mnt.errors import HostError, UsageError
from mnt.facts.fleet import FleetFacts
from mnt.fleet import Timeouts
from mnt.fleet.login.destination import Destination, resolve
from mnt.fleet.login.sshconfig import SshConfig
from mnt.inventory.model import Host, Inventory, Mount, Network, Ssh
from mnt.network.decision import NetworkDecision
from mnt.network.nic import NicChoice
from mnt.preflight.findings import Finding, Severity
from mnt.preflight.registry import all_checks
from mnt.preflight.report import Report
from mnt.setup import playbooks
from mnt.setup.hosts import ansible_inventory
from mnt.setup.plan import Step, advice, steps
from mnt.setup.play import HostResult, Played, _last_words, _take, _Watch
from mnt.setup.run import Failure, failures, with_reasons

HOSTS = tuple(Host(f"node{number}", f"10.0.0.{number}") for number in (1, 2, 3))
INVENTORY = Inventory("c", "c.yaml", HOSTS)


def report(*findings: tuple[str, str, str | None, Severity]) -> Report:
    """Of findings as (check, hosts, playbook, severity)."""
    found = [
        Finding(check, severity, tuple(hosts.split()), "", "", "", "", playbook)
        for check, hosts, playbook, severity in findings
    ]
    fleet = FleetFacts(INVENTORY, HOSTS, {each.name: host() for each in HOSTS})
    return Report(fleet, NetworkDecision("tcp", "", {}), (), tuple(found))


def test_the_plan_is_in_the_order_of_the_playbooks() -> None:
    found = report(
        ("torch-version", "node3", "environment", Severity.FAIL),
        ("nofile", "node3 node1", "tuning", Severity.WARN),
        ("memlock", "node2", "tuning", Severity.FAIL),
        ("gpu-ecc", "node1", None, Severity.FAIL),
        ("nccl-conf", "node1", "rdma", Severity.INFO),
    )
    assert steps(found) == [
        Step("tuning", ("node1", "node2", "node3"), ("nofile", "memlock")),
        Step("environment", ("node3",), ("torch-version",)),
    ]
    assert steps(report()) == []


def test_each_check_names_a_playbook_that_there_is() -> None:
    named = {check.playbook for check in all_checks()} - {None}
    assert named <= {playbook.name for playbook in playbooks.PLAYBOOKS}


def test_the_names_of_playbooks() -> None:
    assert [each.name for each in playbooks.select(["slurm", "system"])] == ["system", "slurm"]
    with pytest.raises(UsageError, match=r"no playbook .sytem.; did you mean .system."):
        playbooks.select(["sytem"])


def ways(hosts: Sequence[Host]) -> dict[str, Destination]:
    return {host.name: resolve(host, SshConfig(host.ssh.config)) for host in hosts}


def shown_by_ssh(words: Sequence[str]) -> list[str]:
    """What `ssh -G` says of these words."""
    argv = ["ssh", "-G", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()


def proxies(words: Sequence[str], name: str) -> dict[str, str]:
    """How ssh reaches a host."""
    settings = (line.partition(" ") for line in shown_by_ssh([*words, name]))
    return {
        key: value for key, _, value in settings if key in ("proxycommand", "proxyjump") and value != "none"
    }


def test_ansible_logs_in_as_mnt_does() -> None:
    ssh = Ssh(
        user="ubuntu",
        port=2222,
        identity="/keys/my key%",
        known_hosts="/known",
        config=None,
        host_keys="strict",
    )
    hosts = (replace(HOSTS[0], ssh=ssh, gpus=8, python=("/env/bin/python",)), HOSTS[1])
    inventory = replace(
        INVENTORY,
        hosts=hosts,
        groups={"big one": ("node1",), "train": ("node1", "node2")},
        storage=(Mount("/shared", "nfs4", "head:/x", ("rw",)),),
        require={"torch": "==2.13.*"},
        network=Network(subnet="10.1.0.0/24"),
    )
    training = NicChoice(nic("ens1", "10.1.0.1/24"), "10.1.0.1", "")
    found = ansible_inventory(
        inventory, hosts, {"node1": training}, {"node1": "ubuntu"}, ways(hosts), Timeouts()
    )["all"]
    one = found["hosts"]["node1"]
    assert (one["ansible_host"], one["ansible_user"], one["ansible_port"]) == ("10.0.0.1", "ubuntu", 2222)
    words = shlex.split(one["ansible_ssh_common_args"])
    lines = shown_by_ssh([*words, "10.0.0.1"])
    assert "identityfile /keys/my key%%" in lines  # `ssh -G` expands no %
    assert "userknownhostsfile /known" in lines
    assert "stricthostkeychecking true" in lines
    assert "forwardagent no" in lines
    assert (one["mnt_training_address"], one["mnt_gpus"]) == ("10.1.0.1", 8)
    assert one["mnt_user"] == "ubuntu"
    assert "ansible_user" not in found["hosts"]["node2"]
    assert found["vars"]["mnt_storage"] == [
        {"path": "/shared", "type": "nfs4", "source": "head:/x", "options": ("rw",)}
    ]
    assert found["vars"]["mnt_training_subnet"] == "10.1.0.0/24"


@pytest.mark.parametrize(
    ("gateway", "jumps"),
    [
        (None, []),
        ("none", []),
        ("admin@bastion:22", ["bastion"]),
        ("first,admin@bastion:22", ["zero", "first", "bastion"]),  # the first has its own in ssh_config
    ],
)
def test_ansibles_way_through_gateways(tmp_path: Path, gateway: str | None, jumps: list[str]) -> None:
    """Each ssh on the way reads ssh_config, and uses no socket that is named there."""
    config = tmp_path / "config"
    config.write_text(
        "Host first\n ProxyJump zero\n StrictHostKeyChecking yes\n"
        "Host *\n ControlPath /tmp/eve\n ForwardAgent yes\n"
    )
    target = replace(HOSTS[0], ssh=Ssh(identity="/keys/my key%", config=str(config), gateway=gateway))
    found = ansible_inventory(INVENTORY, [target], {}, {}, ways([target]), Timeouts())
    words = shlex.split(found["all"]["hosts"]["node1"]["ansible_ssh_common_args"])
    name = target.address
    assert "controlpath" not in " ".join(words).lower()  # else Ansible leaves its own out
    for jump in reversed(jumps):
        proxy = proxies(words, name)["proxycommand"]
        values = {"%h": name, "%p": "22", "%%": "%"}
        words = shlex.split(re.sub("%[hp%]", lambda token, to=values: to[token[0]], proxy))  # type: ignore[misc]
        assert words[-4:] == ["-W", f"[{name}]:22", "--", jump]
        words, name = words[1:-4], jump
        lines = shown_by_ssh([*words, name])
        assert {"forwardagent no", "identityfile /keys/my key%%"} <= set(lines)
        assert not [line for line in lines if line.startswith("controlpath ")]
        assert "stricthostkeychecking true" in lines
    assert proxies(words, name) == {}


@pytest.mark.parametrize("gateway", [None, "admin@bastion:22"])
def test_ansible_has_no_way_to_a_host_that_mnt_has_refused(tmp_path: Path, gateway: str | None) -> None:
    """Neither by a known_hosts file or a gateway that only OpenSSH knows, nor by an open connection."""
    config = tmp_path / "config"
    config.write_text("Host *\n ControlPath /tmp/eve\n ProxyJump eve\n")
    target = replace(HOSTS[0], ssh=Ssh(config=str(config), gateway=gateway))
    found = ansible_inventory(INVENTORY, [target], {}, {}, ways([target]), Timeouts(), ["node1"])
    words = shlex.split(found["all"]["hosts"]["node1"]["ansible_ssh_common_args"])
    assert proxies(words, target.address) == {"proxycommand": "false"}
    assert "controlpath" not in " ".join(words).lower()


def test_a_host_that_mnt_has_refused_has_the_reason_and_the_fix_of_mnt() -> None:
    played = Played(
        {"node1": HostResult(unreachable=True, problem="ssh: x"), "node2": HostResult(ended=True)}
    )
    error = HostError("node1", "host key", "it has changed", fix="mnt trust --replace")
    found = with_reasons(played, {"node1": error, "node2": error})
    assert found.hosts["node1"].problem == "host key: it has changed"
    assert (found.hosts["node1"].fix, found.hosts["node1"].status) == ("mnt trust --replace", "unreachable")
    assert found.hosts["node2"] == HostResult(ended=True)


def training_network(
    inventory: Inventory, *said: str | None, hosts: Sequence[Host] = HOSTS
) -> tuple[str, dict[str, str]]:
    """The sources of the firewall, and the training addresses, if the hosts say this of their NICs."""
    nics = {
        each.name: NicChoice(nic("e", network), network.split("/")[0], "")
        for each, network in zip(HOSTS, said, strict=True)
        if network is not None
    }
    found = ansible_inventory(inventory, hosts, nics, {}, ways(HOSTS), Timeouts())["all"]
    addresses = {name: each.get("mnt_training_address", "") for name, each in found["hosts"].items()}
    return found["vars"]["mnt_training_subnet"], {name: each for name, each in addresses.items() if each}


def test_without_a_subnet_the_addresses_of_hosts_in_different_networks() -> None:
    """Those by which SSH goes there; others are the word of a single host."""
    sources, addresses = training_network(INVENTORY, "10.0.0.1/31", "10.0.0.2/31", "10.1.0.3/31")
    assert sources == "10.0.0.1,10.0.0.2"
    assert addresses == {"node1": "10.0.0.1", "node2": "10.0.0.2"}


@pytest.mark.parametrize(
    ("said", "sources"),
    [
        (("10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/24"), "10.0.0.0/24"),
        (("10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/1"), "10.0.0.0/24"),
        (("10.0.0.1/1", None, None), ""),  # it made the others have several NICs
        (("10.0.0.1/24", None, None), ""),
        (("10.0.0.1/24", "10.0.0.2/24", None), "10.0.0.0/24"),
        (("10.0.0.1/1", "10.0.0.2/1", "10.0.0.3/1"), "10.0.0.1,10.0.0.2,10.0.0.3"),
        (("10.0.0.1/24", "10.0.0.2/24", "198.51.100.66/24"), "10.0.0.0/24"),
    ],
)
def test_a_single_host_does_not_widen_the_training_network(
    said: tuple[str | None, ...], sources: str
) -> None:
    assert training_network(INVENTORY, *said)[0] == sources
    # A playbook for some of them believes no one more.
    assert training_network(INVENTORY, *said, hosts=HOSTS[:1])[0] == sources


def test_an_address_outside_the_training_network_is_none() -> None:
    said = ("10.1.0.1/24", "10.1.0.2/24", "198.51.100.66/24")
    inside = {"node1": "10.1.0.1", "node2": "10.1.0.2"}
    assert training_network(INVENTORY, *said) == ("10.1.0.0/24", inside)
    inventory = replace(INVENTORY, network=Network(subnet="10.1.0.0/24"))
    assert training_network(inventory, *said) == ("10.1.0.0/24", inside)


def heard(*events: dict[str, Any]) -> dict[str, HostResult]:
    results = {"node1": HostResult(), "node2": HostResult()}
    watch = _Watch({"all": {"hosts": {}}}, 60.0)
    for event in events:
        told = {
            "host": "node1",
            "task": "",
            "changed": False,
            "messages": [],
            "report": [],
            "stderr": "",
            **event,
        }
        _take(json.dumps(told).encode(), results, lambda task: None, watch)
    return results


def test_events() -> None:
    found = heard(
        {"event": "task", "host": ""},
        {"event": "ok", "changed": True},
        {"event": "ok"},
        {"event": "skipped"},
        {"event": "ok", "host": "unknown"},
        {"event": "unreachable", "host": "node2", "messages": ["Failed to\nconnect"]},
    )
    assert (found["node1"], found["node1"].status) == (HostResult(ok=2, changed=1, skipped=1), "stopped")
    assert (found["node2"].status, found["node2"].problem) == ("unreachable", "Failed to connect")
    assert not Played(found).ok
    assert Played({"node1": HostResult(ok=1, changed=1, ended=True)}).ok
    assert not Played({}, "it ran on none").ok


def test_reports_are_lines_and_bounded() -> None:
    found = heard(
        {"event": "ok", "report": ["mlx5_0 port 1:\n PORT_ACTIVE", "x" * 2000]},
        *({"event": "ok", "report": [str(n)] * 17} for n in range(9)),
    )
    first, second, *others = found["node1"].reports
    assert (first, second) == ("mlx5_0 port 1: PORT_ACTIVE", "x" * 600)
    assert len(others) == 98
    assert heard({"event": "ok", "report": ["x"] * 18})["node1"].status == "failed"


@pytest.mark.parametrize(
    ("said", "report"),
    [
        ({"msg": "ACS is on"}, ["ACS is on"]),
        ({"msg": "one\ntwo\n\n"}, ["one", "two"]),
        ({"msg": ["one", "", 5, {"a": 1}, "two"]}, ["one", "two"]),
        ({"msg": [str(n) for n in range(20)]}, [*map(str, range(16)), "and 4 more, in Ansible's output"]),
        ({"msg": "x" * 9000}, ["x" * 2000]),
        ({"msg": "\ud800"}, ["?"]),
        ({"msg": 5}, []),
        ({}, []),
    ],
)
def test_what_a_playbook_reports(said: dict[str, Any], report: list[str]) -> None:
    assert pytest.importorskip("mnt.setup.callback.awx_display").report_of(said) == report


def test_equal_failures_of_hosts_are_one() -> None:
    hosts = {f"node{n}": HostResult(problem="Install: no space left on device") for n in (1, 2, 3)}
    hosts["node4"] = HostResult(problem="Install: something else")
    hosts["node5"] = HostResult(problem="Install: no space left on device", fix="another")
    hosts["node6"] = HostResult(ended=True)
    hosts["node7"] = HostResult(problem="Facts: mnt is not in the sudoers file")
    hosts["node8"] = HostResult(problem="Facts: mnt is not in the sudoers file")
    full = "Install: no space left on device"
    assert failures(Played(hosts), "system", {"node7": "mnt", "node8": "mnt"}) == [
        Failure(
            ("node1", "node2", "node3"),
            full,
            "free space on node[1-3], and run this again: it goes on where it stopped",
        ),
        Failure(("node4",), "Install: something else", None),
        Failure(("node5",), full, "another"),
        Failure(("node7", "node8"), "Facts: mnt is not in the sudoers file", "let mnt use sudo on node[7-8]"),
    ]


def test_the_summary_has_each_line_once_and_a_way_out_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    def result(*reports: str, **more: Any) -> HostResult:
        return HostResult(reports=list(reports), **more)

    hosts = {
        "node1": result("ACS is on", "x", "x", problem="Ask: odd"),
        "node2": result("ACS is on", problem="Ask: odd"),
        "node3": result("node1: \x1b[2Ja lie\nnode2: a lie", ended=True),
    }
    _show("tuning", Played(hosts, "Ansible has ended early"), {}, Path("/var/a log"), check=False)
    out, err = capsys.readouterr()
    assert out.splitlines()[4:] == [
        "node[1-2]: ACS is on",
        "node1: x",
        "node3: node1: [2Ja lie node2: a lie",
    ]
    again = "  fix: read '/var/a log'; then run it again: mnt setup tuning"
    assert err.splitlines() == [
        "tuning: Ansible has ended early",
        again,
        "node[1-2]: Ask: odd",
        f"{again} -n 'node[1-2]'",
    ]


def test_an_event_that_is_none_is_a_failure_of_its_host() -> None:
    found = heard({"event": "ok", "changed": 5}, {"event": "end"}, {"event": "end", "host": "node2"})
    assert (found["node1"].status, found["node2"].status) == ("failed", "ok")


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ({"msg": "Task failed: Missing sudo password"}, "Missing sudo password"),
        ({"msg": "non-zero return code", "stderr": "a\nlast words\n"}, "last words"),
        ({"msg": "MODULE FAILURE: see stderr", "module_stderr": "sh: no python"}, "sh: no python"),
        ({"msg": "All items completed", "results": [{"failed": True, "msg": "x"}, {"msg": "y"}]}, "x"),
        ({}, "no reason given"),
        ({"msg": [1], "results": 5, "stderr": {}}, "no reason given"),
    ],
)
def test_what_failed(result: dict[str, Any], problem: str) -> None:
    plugin = pytest.importorskip("mnt.setup.callback.awx_display")
    found = heard({"event": "failed", "task": "Install", **plugin.words_of(result)})
    assert found["node1"].problem == f"Install: {problem}"


@pytest.mark.parametrize(
    ("problem", "way"),
    [
        ("Missing sudo password", "add -K"),
        ("Incorrect sudo password", "type the password of mnt for sudo again"),
        ("mnt is not in the sudoers file.", "let mnt use sudo on node1"),
        ("E: Could not get lock /var/lib/dpkg/lock-frontend", "wait until apt on node1 has ended"),
        ("[Errno 28] No space left on device", "free space on node1"),
        ("/bin/sh: 1: /usr/bin/python3: not found", "mnt setup system"),
        ("ops cannot be compiled: /usr/include/python3.11/Python.h: No such file or directory", None),
        ("something else", None),
    ],
)
def test_the_way_out(problem: str, way: str | None) -> None:
    for playbook in ("system", "nfs"):
        found = advice(problem, playbook, host="node1", user="mnt")
        assert found == way if way is None else way in (found or "")


@pytest.mark.parametrize(
    ("playbook", "problem", "way"),
    [
        ("system", "Err:1 Temporary failure resolving 'deb.debian.org'", "--debs DIR"),
        (
            "environment",
            "Failed to establish a new connection: [Errno 113] No route to host",
            "--wheelhouse DIR",
        ),
        ("nfs", "mount.nfs4: Connection refused; the server must be among the hosts", None),
        ("slurm", "Unable to contact slurm controller: Connection refused", None),
        ("ssh", "connect: No route to host", None),
        ("container", "initializing source docker://x: connection refused", None),
    ],
)
def test_only_who_looks_for_packages_has_a_mirror(playbook: str, problem: str, way: str | None) -> None:
    found = advice(problem, playbook, host="node1", user="mnt")
    assert found == way if way is None else way in (found or "")


def test_what_ansible_says_when_it_runs_on_no_host() -> None:
    assert _last_words("\nERROR! no such file\nmore\n") == "ERROR! no such file"
    assert _last_words("a\nb\n\n") == "b"
    assert _last_words("") == "it said nothing"
