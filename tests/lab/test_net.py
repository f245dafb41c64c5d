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

from mnt.lab import Lab, LabHost

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
        ("NCCL_SOCKET_IFNAME", "/etc/nccl.conf line 2 is not followed: the environment of the job wins")
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


def test_a_host_that_is_off_hides_no_other(pair: Lab, run_mnt: RunMnt) -> None:
    faults.power_off(pair.hosts[1])
    found = document(run_mnt("net", "--json", lab=pair))
    assert not found["ok"]
    assert found["hosts"]["node2"]["status"] == "unreachable"
    assert variables(found, "node1")["GLOO_SOCKET_IFNAME"] == pair.hosts[0].spec.nic
    done = run_mnt("net", "--shell", "node2", lab=pair)
    assert (done.returncode, done.stdout) == (1, "")
    assert "node2" in done.stderr
