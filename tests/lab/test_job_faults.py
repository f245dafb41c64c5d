"""Jobs whose hosts, supervisors or head fail: each ends soon, names the host, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from faults import firewall, nic_down, power_off
from launches import SLEEP, nothing_is_left, start_attached
from waiting import PATIENCE, at_most, read_until, rest_of

from mnt.lab.lab import Lab, LabHost

pytestmark = pytest.mark.usefixtures("no_job_left")

Mnt = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    (root / "sleeper.py").write_text(SLEEP)
    return root


def signal_programs(host: LabHost, signum: signal.Signals, *words: str) -> None:
    """Send a signal to each of the host's processes that has one of the words in its command line."""
    for word in words:
        done = host.exec(["pkill", f"-{signum.value}", "-f", f"[{word[0]}]{word[1:]}"])
        assert done.returncode == 0, f"{word}: {done.stderr}"


def no_link(host: LabHost) -> list[str]:
    """Rules for the master: nobody reaches the port of its supervisor, while the rendezvous is open."""
    return [f"iifname {host.spec.nic} tcp dport {{ 1024-29499, 29501-65535 }} drop"]


@pytest.mark.parametrize("signum", [pytest.param(signal.SIGSTOP, marks=pytest.mark.matrix), signal.SIGKILL])
def test_the_supervisor_of_the_only_node_says_no_more(pushed: Mnt, lab: Lab, signum: signal.Signals) -> None:
    """If it is killed together with torchrun, a rank is left of which nobody takes care."""
    words = ("supervisor.py",) if signum == signal.SIGSTOP else ("supervisor.py", "torch.distributed.run")
    launch = start_attached(lab, "-n", "node2", "--grace", "1", "sleeper.py")
    read_until(launch, "sleeping")
    signal_programs(lab.host("node2"), signum, *words)
    with at_most(60):
        said = rest_of(launch)
    assert launch.returncode == 1, said
    why = "is stopped (SIGSTOP)" if signum == signal.SIGSTOP else "was killed"
    assert f"node2: its supervisor {why}" in said.splitlines()[-1]
    nothing_is_left(lab)
    job = json.loads(pushed("status", "--json").stdout)["jobs"][0]
    assert (job["state"], job["culprit"]["host"]) == ("failed", "node2")


@pytest.mark.parametrize("wait_for_master", [False, True])
def test_the_head_is_killed_while_the_master_starts(
    pushed: Mnt, lab: Lab, tmp_path: Path, wait_for_master: bool
) -> None:
    """The others take two seconds to start, so that they have not when the head is killed."""
    inventory = yaml.safe_load(lab.inventory_path.read_text())
    slow = f'sleep 2; exec {inventory["defaults"]["python"]} "$@"'
    for name in ("node2", "node3"):
        inventory["hosts"][name]["python"] = ["/bin/sh", "-c", slow, "python"]
    path = tmp_path / "inventory.yaml"
    path.write_text(yaml.safe_dump(inventory, sort_keys=False))
    words = ("-i", str(path), "-n", "node[1-3]", "--no-preflight", "--grace", "1", "sleeper.py")
    launch = start_attached(lab, *words)
    read_until(launch, "starting, rendezvous")
    if wait_for_master:
        read_until(launch, "starting, to connect")
    launch.kill()
    launch.communicate(timeout=PATIENCE)
    with at_most(60):
        nothing_is_left(lab)
    job = json.loads(pushed("status", "--json").stdout)["jobs"][0]
    assert job["state"] not in ("starting", "running")
    pushed("stop", job["job"])  # removes what was staged on hosts that never started, if anything is left
    for host in lab.hosts:
        assert host.exec(["sh", "-c", "ls -d /tmp/mnt-*/* || true"]).stdout == ""


@pytest.mark.parametrize("on", [pytest.param("node1", marks=pytest.mark.matrix), "node3"])
def test_the_training_nic_of_a_host_goes_down(pushed: Mnt, lab: Lab, on: str) -> None:
    launch = start_attached(lab, "--grace", "1", "sleeper.py")
    read_until(launch, "sleeping", 4)
    with nic_down(lab.host(on)), at_most(60):
        said = rest_of(launch)
    assert launch.returncode == 1, said
    assert f"failed: {on}: its training NIC" in said.splitlines()[-1]


@pytest.mark.parametrize("lost", ["node1", pytest.param("node3", marks=pytest.mark.matrix)])
def test_a_host_dies_before_the_first_contact_of_the_supervisors(
    run_mnt: Mnt, make_lab: Callable[..., Lab], tree: Path, lost: str
) -> None:
    lab = make_lab(count=3)
    assert run_mnt("push", str(tree), lab=lab).returncode == 0
    firewall(lab.host("node1"), *no_link(lab.host("node1")))
    launch = start_attached(lab, "--no-preflight", "--grace", "1", "sleeper.py")
    read_until(launch, "sleeping", 3)
    power_off(lab.host(lost))
    with at_most(90):
        said = rest_of(launch)
    assert launch.returncode == 1, said
    assert f" {lost}: " in said.splitlines()[-1], said
    nothing_is_left(lab)


def test_dead_hosts_are_named_beside_the_job_that_was_stopped(
    run_mnt: Mnt, make_lab: Callable[..., Lab], tree: Path
) -> None:
    lab = make_lab(count=4)
    assert run_mnt("push", str(tree), lab=lab).returncode == 0
    job = run_mnt(
        "launch", "-n", "node[1-2]", "--detach", "--grace", "1", "sleeper.py", lab=lab
    ).stdout.strip()
    for name in ("node3", "node4"):
        power_off(lab.host(name))
    done = run_mnt("stop", job, "--grace", "1", "--json", lab=lab)
    assert done.returncode == 1, done.stderr
    (document,) = json.loads(done.stdout)["jobs"]
    assert {host: each["status"] for host, each in document["hosts"].items()} == {
        "node1": "stopped",
        "node2": "stopped",
        "node3": "unreachable",
        "node4": "unreachable",
    }
    assert done.stderr.count("no answer from") == 2
    nothing_is_left(lab)
