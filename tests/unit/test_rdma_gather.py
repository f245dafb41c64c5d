"""RDMA devices out of a sysfs that the test lays out; the shape is that of a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mnt import typed
from mnt.facts.rdma import RdmaFacts
from mnt.remote.probe import rdma

ZERO = rdma.EMPTY_GID
LINK_LOCAL = "fe80:0000:0000:0000:0e42:a1ff:fe6b:1234"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a00:0017"  # 10.0.0.23


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def port_files(root: Path, device: str, number: int = 1, **changes: str) -> Path:
    port = root / f"sys/class/infiniband/{device}/ports/{number}"
    files = {
        "state": "4: ACTIVE\n",
        "phys_state": "5: LinkUp\n",
        "link_layer": "Ethernet\n",
        "rate": "400 Gb/sec (4X NDR)\n",
        **changes,
    }
    for name, text in files.items():
        write(port / name, text)
    return port


def gid_slot(port: Path, index: int, gid: str, type: str | None, netdev: str | None) -> None:
    """A slot; None: reading fails, as with the kernel's EINVAL, for a directory is there."""
    write(port / f"gids/{index}", gid + "\n")
    for name, text in (("types", type), ("ndevs", netdev)):
        file = port / f"gid_attrs/{name}/{index}"
        if text is None:
            file.mkdir(parents=True)
        else:
            write(file, text + "\n")


def gathered(root: Path) -> RdmaFacts:
    facts: RdmaFacts = typed.convert(rdma.gather(str(root)), RdmaFacts)
    return facts


def test_a_host_without_rdma(tmp_path: Path) -> None:
    assert gathered(tmp_path) == RdmaFacts()


def test_a_port_and_its_sparse_gid_table(tmp_path: Path) -> None:
    port = port_files(tmp_path, "mlx5_0")
    for index in range(6):
        gid_slot(port, index, ZERO, None, None)
    gid_slot(port, 6, LINK_LOCAL, "RoCE v2", "ens1f0np0")
    gid_slot(port, 7, MAPPED, "RoCE v2", "ens1f0np0")
    gid_slot(port, 10, MAPPED, None, None)
    (tmp_path / "sys/class/infiniband/mlx5_0/device/net/ens1f0np0").mkdir(parents=True)
    (device,) = gathered(tmp_path).devices
    assert (device.name, device.netdevs) == ("mlx5_0", ("ens1f0np0",))
    (found,) = device.ports
    assert (found.number, found.state, found.phys_state, found.link_layer, found.rate) == (
        *(1, "ACTIVE", "LinkUp", "Ethernet", 400.0),
    )
    assert [(gid.index, gid.ipv4, gid.type, gid.netdev) for gid in found.gids] == [
        (6, None, "RoCE v2", "ens1f0np0"),
        (7, "10.0.0.23", "RoCE v2", "ens1f0np0"),
        (10, "10.0.0.23", None, None),
    ]


def test_indices_and_devices_go_by_their_numbers(tmp_path: Path) -> None:
    for name in ("mlx5_10", "mlx5_2", "mlx5_1"):
        port = port_files(tmp_path, name)
        for index in (10, 9, 2):
            gid_slot(port, index, MAPPED, "RoCE v2", "eth0")
    devices = gathered(tmp_path).devices
    assert [device.name for device in devices] == ["mlx5_1", "mlx5_2", "mlx5_10"]
    assert [gid.index for gid in devices[0].ports[0].gids] == [2, 9, 10]


def test_a_port_that_is_down_and_one_that_says_nothing(tmp_path: Path) -> None:
    port_files(
        tmp_path, "mlx5_0", 1, state="1: DOWN\n", phys_state="3: Disabled\n", link_layer="InfiniBand\n"
    )
    port_files(tmp_path, "mlx5_0", 2, state="", phys_state="", link_layer="", rate="garbage\n")
    first, second = gathered(tmp_path).devices[0].ports
    assert (first.state, first.phys_state, first.link_layer, first.active) == (
        *("DOWN", "Disabled", "InfiniBand", False),
    )
    assert (second.state, second.phys_state, second.link_layer, second.rate) == (None, None, None, None)


def test_a_fractional_rate(tmp_path: Path) -> None:
    port_files(tmp_path, "mlx5_0", rate="2.5 Gb/sec (1X SDR)\n")
    assert gathered(tmp_path).devices[0].ports[0].rate == 2.5


def test_bonds_and_vlans_lead_down_to_the_device(tmp_path: Path) -> None:
    port_files(tmp_path, "mlx5_bond_0")
    for netdev in ("eth0", "eth1"):
        (tmp_path / f"sys/class/infiniband/mlx5_bond_0/device/net/{netdev}").mkdir(parents=True)
        (tmp_path / f"sys/class/net/{netdev}").mkdir(parents=True)
        (tmp_path / f"sys/class/net/bond0/lower_{netdev}").mkdir(parents=True)
    (tmp_path / "sys/class/net/bond0.2973/lower_bond0").mkdir(parents=True)
    (tmp_path / "sys/class/net/mgmt0").mkdir()
    found = gathered(tmp_path)
    assert found.lowers == {"bond0": ("eth0", "eth1"), "bond0.2973": ("bond0",)}
    for nic in ("eth1", "bond0", "bond0.2973"):
        assert [device.name for device in found.carrying(nic)] == ["mlx5_bond_0"]
    assert found.carrying("mgmt0") == ()


def test_whether_the_user_may_open_the_device(tmp_path: Path) -> None:
    for number, name in enumerate(("mlx5_0", "mlx5_1")):
        port_files(tmp_path, name)
        write(tmp_path / f"sys/class/infiniband_verbs/uverbs{number}/ibdev", name + "\n")
    port_files(tmp_path, "mlx5_2")
    write(tmp_path / "sys/class/infiniband_verbs/abi_version", "6\n")
    write(tmp_path / "dev/infiniband/uverbs0", "")
    assert [device.usable for device in gathered(tmp_path).devices] == [True, False, None]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("sys/module/nvidia_peermem/version", True),
        ("sys/module/nv_peer_mem/version", True),
        ("sys/kernel/mm/memory_peers/nv_mem/version", True),
        ("sys/module/nvidia/version", False),
    ],
)
def test_the_modules_that_give_a_nic_gpu_memory(tmp_path: Path, path: str, expected: bool) -> None:
    write(tmp_path / path, "1\n")
    assert gathered(tmp_path).peermem is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06\n", True),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01\n", False),
    ],
)
def test_open_and_closed_kernel_modules(tmp_path: Path, text: str, expected: bool) -> None:
    write(tmp_path / "proc/driver/nvidia/version", text)
    assert gathered(tmp_path).open_driver is expected


def test_this_machine_is_read_without_complaint() -> None:
    typed.convert(rdma.gather(), RdmaFacts)
