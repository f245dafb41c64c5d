"""`mnt net` on real hosts: NICs of four names, configuration files, and HCAs that are files in a sysfs."""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faults
import pytest
import yaml

from mnt.lab.lab import Lab, LabHost

RunMnt = Callable[..., subprocess.CompletedProcess[str]]
MakeLab = Callable[..., Lab]

SYSFS = "/sys/class"
PORT = f"{SYSFS}/infiniband/mlx5_0/ports/1"


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if found["ok"] else 1), done.stderr
    return found


def variables(found: dict[str, Any], host: str) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in found["hosts"][host]["variables"]}


def with_mode(lab: Lab, tmp_path: Path, mode: str) -> str:
    """A copy of the lab's inventory with another network.mode."""
    inventory = yaml.safe_load(lab.inventory_path.read_text())
    inventory["network"]["mode"] = mode
    path = tmp_path / f"{mode}.yaml"
    path.write_text(yaml.safe_dump(inventory, sort_keys=False))
    return str(path)


def give_hca(host: LabHost, first: int) -> None:
    """A RoCE device over the training NIC, whose GIDs begin at slot `first`; the slots before are empty."""
    mapped = ipaddress.IPv6Address(f"::ffff:{host.spec.training}").exploded
    slots = {first: ("fe80" + ":0000" * 6 + ":0001", "RoCE v2"), first + 1: (mapped, "IB/RoCE v1")}
    slots[first + 2] = (mapped, "RoCE v2")
    lines = [
        f"mount -t tmpfs tmpfs {SYSFS}",
        f"mkdir -p {PORT}/gids {PORT}/gid_attrs/types {PORT}/gid_attrs/ndevs",
    ]
    texts = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "link_layer": "Ethernet", "rate": "400 Gb/sec"}
    lines += [f"echo '{text}' > {PORT}/{name}" for name, text in texts.items()]
    for index in range(first):
        lines.append(
            f"echo {':'.join(['0000'] * 8)} > {PORT}/gids/{index}; mkdir {PORT}/gid_attrs/types/{index}"
        )
    for index, (gid, type) in slots.items():
        lines.append(f"echo {gid} > {PORT}/gids/{index}")
        lines.append(f"echo '{type}' > {PORT}/gid_attrs/types/{index}")
        lines.append(f"echo {host.spec.nic} > {PORT}/gid_attrs/ndevs/{index}")
    done = host.exec(["sh", "-ec", "\n".join(lines)])
    assert done.returncode == 0, done.stderr


def test_each_host_by_its_own_nic(mnt: RunMnt, lab: Lab) -> None:
    found = document(mnt("net", "--json"))
    assert found["mode"] == "tcp"
    assert list(found["hosts"]) == ["node1", "node2", "node3", "node4"]
    for host in lab.hosts:
        assert variables(found, host.name) == {
            "NCCL_SOCKET_IFNAME": f"={host.spec.nic}",
            "GLOO_SOCKET_IFNAME": host.spec.nic,
            "NCCL_IB_DISABLE": "1",
        }
        assert found["hosts"][host.name]["address"] == host.spec.training
        assert found["hosts"][host.name]["expected"]["interfaces"][0].startswith("mgmt0 ")


def test_for_a_person(mnt: RunMnt) -> None:
    done = mnt("net", "-n", "node3,node2")
    assert done.returncode == 0
    assert "mode tcp" in done.stdout
    assert done.stdout.index("node3: ens3f0 ") < done.stdout.index("node2: enp26s0np0 ")
    assert "NCCL by itself, expected: sockets over mgmt0 " in done.stdout


def test_a_shell_takes_one_hosts_variables(mnt: RunMnt) -> None:
    done = mnt("net", "--shell", "node2")
    assert done.returncode == 0
    script = done.stdout + 'echo "$NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME $NCCL_IB_DISABLE"'
    shell = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=True)
    assert shell.stdout == "=enp26s0np0 enp26s0np0 1\n"


def test_the_shell_of_a_host_that_is_not_selected(mnt: RunMnt) -> None:
    done = mnt("net", "--shell", "nod2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'node2'" in done.stderr


@pytest.fixture
def pair(make_lab: MakeLab) -> Lab:
    """Two hosts to be broken at will."""
    return make_lab(count=2)


def test_configuration_files_that_fight(pair: Lab, run_mnt: RunMnt) -> None:
    node1, node2 = pair.hosts
    faults.write_file(node1, "/etc/nccl.conf", "# by hand\nNCCL_SOCKET_IFNAME=mgmt0\n")
    faults.write_file(node2, ".nccl.conf", "NCCL_NET=IB\nNCCL_ALGO=Ring\n", user=True)
    found = document(run_mnt("net", "--json", lab=pair))
    assert [(each["variable"], each["message"]) for each in found["hosts"]["node1"]["conflicts"]] == [
        ("NCCL_SOCKET_IFNAME", "/etc/nccl.conf line 2 has no effect: the environment of the job overrides it")
    ]
    assert [(each["variable"], each["harmful"]) for each in found["hosts"]["node2"]["conflicts"]] == [
        ("NCCL_NET", True),
        ("NCCL_ALGO", False),
    ]
    assert found["hosts"]["node1"]["expected"]["reason"] == "NCCL_SOCKET_IFNAME=mgmt0"
    preflight = json.loads(run_mnt("preflight", "--json", "--only", "nccl-conf", lab=pair).stdout)
    assert [(each["hosts"], each["severity"]) for each in preflight["findings"]] == [
        (["node1"], "info"),
        (["node2"], "warn"),
        (["node2"], "info"),
    ]


def test_roce_with_another_gid_index_on_each_host(pair: Lab, run_mnt: RunMnt, tmp_path: Path) -> None:
    node1, node2 = pair.hosts
    give_hca(node1, 0)
    found = document(run_mnt("net", "--json", "-i", with_mode(pair, tmp_path, "auto")))
    assert (found["mode"], found["reason"]) == ("tcp", "auto: node2: there is no RDMA device")
    found = document(run_mnt("net", "--json", "-i", with_mode(pair, tmp_path, "rdma")))
    assert [found["hosts"][name]["status"] for name in ("node1", "node2")] == ["ok", "fail"]
    assert "there is no RDMA device" in found["hosts"]["node2"]["problem"]["message"]

    give_hca(node2, 5)
    found = document(run_mnt("net", "--json", "-i", with_mode(pair, tmp_path, "auto")))
    assert found["mode"] == "rdma"
    ranges = {variables(found, host.name)["NCCL_IB_ADDR_RANGE"] for host in pair.hosts}
    assert len(ranges) == 1
    for host, index in ((node1, 2), (node2, 7)):
        assert variables(found, host.name)["NCCL_IB_HCA"] == "=mlx5_0"
        assert variables(found, host.name)["NCCL_SOCKET_IFNAME"] == f"={host.spec.nic}"
        (hca,) = found["hosts"][host.name]["hcas"]
        assert (hca["gid_index"], hca["gid"]) == (index, host.spec.training)


# --- a trial: the truth ----------------------------------------------------------------------------------


def train_python(lab: Lab) -> None:
    """Skips where the hosts have no torch."""
    if lab.spec.python == "/usr/bin/python3":
        pytest.skip("there is no training environment: scripts/train-venv.sh makes one")


def nothing_is_left(lab: Lab) -> None:
    for host in lab.hosts:
        left = host.exec(["sh", "-c", "ls -d /tmp/mnt-* ~mnt/.mnt 2>/dev/null; ps -u mnt -o args="]).stdout
        assert not any(word in left for word in ("mnt-stage", "torch", "allreduce", ".mnt")), left


@pytest.mark.train
def test_deep_shows_the_nic_that_gloo_really_used(pair: Lab, run_mnt: RunMnt) -> None:
    """Two hosts whose training NICs have other names, beside a management network that gloo must not take."""
    train_python(pair)
    found = document(run_mnt("net", "--deep", "--json", lab=pair))
    assert found["ok"]
    assert (found["deep"]["ok"], found["deep"]["backend"], found["deep"]["world_size"]) == (True, "gloo", 2)
    for host, other in zip(pair.hosts, reversed(pair.hosts), strict=True):
        used = found["hosts"][host.name]["used"]
        assert used["interfaces"] == [f"{host.spec.nic} {host.spec.training}"]
        assert f"{host.spec.training} to {other.spec.training}" in used["said"]
        assert (used["as_set"], used["differs"]) == (True, [])
    nothing_is_left(pair)


@pytest.mark.matrix
@pytest.mark.train
def test_deep_tells_a_job_that_was_led_elsewhere(pair: Lab, run_mnt: RunMnt, tmp_path: Path) -> None:
    """`GLOO_SOCKET_IFNAME` of the inventory's env is what was set; without an address there, it fails."""
    train_python(pair)
    inventory = yaml.safe_load(pair.inventory_path.read_text())
    inventory.setdefault("env", {})["GLOO_SOCKET_IFNAME"] = "mgmt0"
    path = tmp_path / "led.yaml"
    path.write_text(yaml.safe_dump(inventory, sort_keys=False))
    done = run_mnt("net", "--deep", "-i", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("gloo really used, as set: sockets over mgmt0 ") == 2
    inventory["env"]["GLOO_SOCKET_IFNAME"] = "nosuch0"
    path.write_text(yaml.safe_dump(inventory, sort_keys=False))
    done = run_mnt("net", "--deep", "-i", str(path))
    assert done.returncode == 1
    assert "the trial failed: " in done.stderr
    assert "NCCL by itself, expected: " in done.stdout
    nothing_is_left(pair)


@pytest.mark.train
def test_deep_tells_an_address_that_nobody_meant(pair: Lab, run_mnt: RunMnt) -> None:
    """gloo takes the first address of a NIC, which is not the training address here."""
    train_python(pair)
    for number, host in enumerate(pair.hosts, 1):
        script = (
            f'nic={host.spec.nic}; old=$(ip -o -4 addr show dev $nic | tr -s " " | cut -d" " -f4); '
            f"ip addr add 10.99.0.{number}/24 dev $nic; ip addr del $old dev $nic; ip addr add $old dev $nic"
        )
        assert host.exec(["sh", "-ec", script]).returncode == 0
    found = document(run_mnt("net", "--deep", "--json", lab=pair))
    assert (found["ok"], found["deep"]["ok"]) == (False, True)
    for number, host in enumerate(pair.hosts, 1):
        nic, training = host.spec.nic, host.spec.training
        assert found["hosts"][host.name]["address"] == training
        assert found["hosts"][host.name]["used"]["differs"] == [
            f"{nic} is used with address 10.99.0.{number}, not with its training address {training}"
        ]
    nothing_is_left(pair)


def test_deep_without_a_torch(make_lab: MakeLab, run_mnt: RunMnt) -> None:
    lab = make_lab(count=2, python="/usr/bin/python3")
    done = run_mnt("net", "--deep", lab=lab)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("mnt: ")]
    assert line == "mnt: --deep: node[1-2]: torch is not installed for the configured interpreter"
    assert "GLOO_SOCKET_IFNAME" in done.stdout
    found = document(run_mnt("net", "--deep", "--json", lab=lab))
    assert not found["deep"]["ok"]
    assert found["hosts"]["node1"]["used"] is None
    nothing_is_left(lab)


def test_net_and_preflight_start_no_trial_behind_a_firewall(make_lab: MakeLab, run_mnt: RunMnt) -> None:
    """The rendezvous would succeed, and then the job would wait for ports that are closed."""
    lab = make_lab(count=2, python="/usr/bin/python3")
    host = lab.host("node2")
    with faults.firewalled(host, *faults.drop_ports(host, "1024-29000, 30000-65535")):
        net = document(run_mnt("net", "--deep", "--json", lab=lab))
        preflight = document(run_mnt("preflight", "--deep", "--json", lab=lab))
    refused = net["deep"]["problem"]["message"]
    assert refused.startswith("not tried: node[1-2]: node2, as only node1 says: ")
    assert refused.endswith(" (nic-reach)")
    (finding,) = [each for each in preflight["findings"] if each["check"] == "all-reduce"]
    assert finding["message"] == refused
    assert net["deep"]["world_size"] == preflight["deep"]["world_size"] == 0
    assert net["hosts"]["node1"]["used"] is None

    for command in ("net", "preflight"):
        healed = run_mnt(command, "--deep", lab=lab)
        assert "not tried" not in healed.stdout + healed.stderr
        assert (
            "torch is not installed" in healed.stdout + healed.stderr
        )  # which only the trial itself reports


def test_net_and_preflight_name_a_nic_that_is_down(make_lab: MakeLab, run_mnt: RunMnt) -> None:
    lab = make_lab(count=2)
    with faults.nic_down(lab.host("node2")):
        shown = document(run_mnt("net", "--json", lab=lab))
        checked = document(run_mnt("preflight", "--json", "--only", "nic", lab=lab))
    assert {name: host["status"] for name, host in shown["hosts"].items()} == {"node1": "ok", "node2": "fail"}
    (finding,) = checked["findings"]
    assert finding["hosts"] == ["node2"]
    assert shown["hosts"]["node2"]["problem"] == {"message": finding["message"], "fix": finding["fix"]}


def test_deep_prints_no_lines_for_a_shell(mnt: RunMnt) -> None:
    done = mnt("net", "--deep", "--shell", "node1")
    assert (done.returncode, done.stdout) == (2, "")


def test_a_host_that_is_off_hides_no_other(pair: Lab, run_mnt: RunMnt) -> None:
    faults.power_off(pair.hosts[1])
    found = document(run_mnt("net", "--json", lab=pair))
    assert not found["ok"]
    assert found["hosts"]["node2"]["status"] == "unreachable"
    assert variables(found, "node1")["GLOO_SOCKET_IFNAME"] == pair.hosts[0].spec.nic
    done = run_mnt("net", "--shell", "node2", lab=pair)
    assert (done.returncode, done.stdout) == (1, "")
    assert "node2" in done.stderr


def test_net_preflight_and_launch_blame_the_master_that_is_off_the_workers_subnet(
    make_lab: MakeLab, run_mnt: RunMnt, tmp_path: Path
) -> None:
    lab = make_lab(count=3)
    inventory = yaml.safe_load(lab.inventory_path.read_text())
    inventory["network"] = {"exclude": ["mgmt*"]}  # no hint which NIC trains, but that it is not this one
    for host in inventory["hosts"].values():
        host.pop("nic", None)
    path = tmp_path / "unhinted.yaml"
    path.write_text(yaml.safe_dump(inventory, sort_keys=False))
    master = lab.hosts[0]
    moved = f"ip addr flush dev {master.spec.nic}; ip addr add 10.99.0.1/24 dev {master.spec.nic}"
    assert master.exec(["sh", "-ec", moved]).returncode == 0

    found = document(run_mnt("net", "-i", str(path), "--json"))
    assert {name: host["status"] for name, host in found["hosts"].items()} == {
        "node1": "fail",
        "node2": "ok",
        "node3": "ok",
    }
    done = run_mnt("preflight", "-i", str(path), "--json", "--only", "nic,nic-reach")
    blamed = {finding["check"]: finding["hosts"] for finding in json.loads(done.stdout)["findings"]}
    assert blamed == {"nic": ["node1"]}
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").write_text("")
    assert run_mnt("push", "-i", str(path), str(tree)).returncode == 0
    refused = run_mnt("launch", "-i", str(path), "--no-preflight", "train.py")
    assert refused.returncode == 125
    for said in (found["hosts"]["node1"]["problem"]["message"], refused.stderr):
        assert "no NIC reaches every worker" in said
