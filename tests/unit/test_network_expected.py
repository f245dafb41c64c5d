"""What NCCL would choose by itself, situation by situation."""

from __future__ import annotations

import pytest
from network_facts import DOCKER, LO, infiniband, nic, roce, table

from mnt.facts.host import Interface
from mnt.facts.rdma import Device, RdmaFacts
from mnt.network.expected import expect, expect_interfaces, matcher

ETH0, ETH1 = nic("eth0", "10.0.0.1/24"), nic("eth1", "10.1.0.1/24")
BRIDGE = nic("br-5c1f", "172.18.0.1/16")


@pytest.mark.parametrize(
    ("interfaces", "environment", "expected"),
    [
        ([LO, ETH0], {}, ["eth0 10.0.0.1"]),
        ([LO, DOCKER, ETH0], {}, ["eth0 10.0.0.1"]),
        ([LO, BRIDGE, ETH0], {}, ["br-5c1f 172.18.0.1", "eth0 10.0.0.1"]),
        ([LO, ETH1, ETH0], {}, ["eth1 10.1.0.1", "eth0 10.0.0.1"]),
        ([LO, ETH0, nic("ib0", "10.9.0.1/24")], {}, ["ib0 10.9.0.1"]),
        (
            [LO, ETH0, nic("ibs3", "10.9.0.1/24"), nic("ibs4", "10.9.0.2/24")],
            {},
            ["ibs3 10.9.0.1", "ibs4 10.9.0.2"],
        ),
        # Beginnings of names, not names: lom1 is taken for a loopback.
        ([LO, nic("lom1", "10.0.0.1/24"), ETH1], {}, ["eth1 10.1.0.1"]),
        ([LO, DOCKER], {}, ["docker0 172.17.0.1"]),
        ([LO], {}, ["lo 127.0.0.1"]),
        ([nic("virbr0", "192.168.122.1/24")], {}, ["virbr0 192.168.122.1"]),
        ([], {}, []),
        # Every IPv4 comes before any IPv6, whatever the order of the interfaces.
        ([nic("veth1", v6=["fe80::2/64"]), ETH0], {}, ["eth0 10.0.0.1", "veth1 fe80::2"]),
        ([nic("eth0", v6=["2001:db8::1/64", "fe80::1/64"])], {}, ["eth0 2001:db8::1"]),
        ([nic("eth0", "192.168.7.7/24", "10.0.0.1/24")], {}, ["eth0 192.168.7.7"]),
        ([nic("eth0", "10.0.0.1/24", up=False), ETH1], {}, ["eth1 10.1.0.1"]),
        ([nic("eth0", "10.0.0.1/24", carrier=False), ETH1], {}, ["eth1 10.1.0.1"]),
        ([nic("eth0", "10.0.0.1/24", carrier=None), ETH1], {}, ["eth0 10.0.0.1", "eth1 10.1.0.1"]),
        ([ETH0, nic("eth10", "10.5.0.1/24")], {"NCCL_SOCKET_IFNAME": "eth1"}, ["eth10 10.5.0.1"]),
        ([ETH0, nic("eth10", "10.5.0.1/24")], {"NCCL_SOCKET_IFNAME": "=eth1"}, []),
        ([ETH0, ETH1], {"NCCL_SOCKET_IFNAME": "^=eth0"}, ["eth1 10.1.0.1"]),
        ([LO, ETH0], {"NCCL_SOCKET_IFNAME": "="}, ["eth0 10.0.0.1"]),  # one sign is as good as none
        ([ETH0, ETH1], {"NCCL_COMM_ID": "10.1.0.9:29500"}, ["eth1 10.1.0.1"]),
        ([ETH0, ETH1], {"NCCL_COMM_ID": "head:29500"}, ["eth0 10.0.0.1", "eth1 10.1.0.1"]),
        (
            [ETH0, nic("eth2", "10.2.0.1/24", v6=["2001:db8::2/64"])],
            {"NCCL_COMM_ID": "[2001:db8::9]:29500"},
            ["eth2 2001:db8::2"],
        ),
        (
            [nic("eth0", "10.0.0.1/24", v6=["2001:db8::1/64"])],
            {"NCCL_SOCKET_FAMILY": "AF_INET6"},
            ["eth0 2001:db8::1"],
        ),
        (
            [nic("eth0", "10.0.0.1/24", v6=["fe80::1/64"])],
            {"NCCL_SOCKET_FAMILY": "AF_INET"},
            ["eth0 10.0.0.1"],
        ),
    ],
)
def test_interfaces(interfaces: list[Interface], environment: dict[str, str], expected: list[str]) -> None:
    assert expect_interfaces(interfaces, environment)[0] == expected


MLX1 = roce("mlx5_1", "eth1", table("eth1", "10.1.0.1"))
MLX10 = infiniband("mlx5_10")


@pytest.mark.parametrize(
    ("devices", "environment", "version", "expected"),
    [
        ([], {}, None, ()),
        ([MLX10], {}, None, ("mlx5_10:1",)),
        ([MLX1], {}, None, ("mlx5_1:1 GID 3",)),
        ([MLX1], {}, (2, 20, 5), ("mlx5_1:1 GID 0",)),
        ([MLX1], {"NCCL_IB_GID_INDEX": "1"}, None, ("mlx5_1:1 GID 1",)),
        ([MLX1], {"NCCL_IB_ADDR_RANGE": "10.9.0.0/16"}, None, ("mlx5_1:1 GID 0",)),
        ([MLX1], {"NCCL_IB_ADDR_RANGE": "garbage"}, None, ("mlx5_1:1 GID 3",)),
        ([MLX1], {"NCCL_IB_ADDR_RANGE": "10.1.0.77/24"}, None, ("mlx5_1:1 GID 3",)),
        ([MLX1, MLX10], {"NCCL_IB_HCA": "mlx5_1"}, None, ("mlx5_1:1 GID 3", "mlx5_10:1")),
        ([MLX1, MLX10], {"NCCL_IB_HCA": "=mlx5_1"}, None, ("mlx5_1:1 GID 3",)),
        ([MLX1, MLX10], {"NCCL_IB_HCA": "^mlx5_10"}, None, ("mlx5_1:1 GID 3",)),
        ([MLX10], {"NCCL_IB_HCA": "=mlx5_10:2"}, None, ()),
        ([MLX10], {"NCCL_IB_DISABLE": "1"}, None, ()),
        ([MLX10], {"NCCL_IB_DISABLE": "no"}, None, ("mlx5_10:1",)),
        ([infiniband("mlx5_0", state="DOWN"), infiniband("mlx5_1", usable=False)], {}, None, ()),
    ],
)
def test_devices(
    devices: list[Device],
    environment: dict[str, str],
    version: tuple[int, ...] | None,
    expected: tuple[str, ...],
) -> None:
    assert expect([ETH0], RdmaFacts(tuple(devices)), environment, version).hcas == expected


@pytest.mark.parametrize(
    ("interfaces", "devices", "text"),
    [
        ([DOCKER, ETH0], [], "sockets over eth0 10.0.0.1"),
        ([BRIDGE, ETH0, ETH1], [], "sockets over br-5c1f 172.18.0.1, and eth0 10.0.0.1, eth1 10.1.0.1"),
        ([ETH0], [MLX10], "RDMA over mlx5_10:1; bootstrap over eth0 10.0.0.1"),
        ([], [MLX10], "nothing: NCCL finds no interface and fails"),
    ],
)
def test_in_words(interfaces: list[Interface], devices: list[Device], text: str) -> None:
    assert str(expect(interfaces, RdmaFacts(tuple(devices)), {}, None)) == text


@pytest.mark.parametrize(
    ("names", "name", "port", "expected"),
    [
        ("", "anything", None, True),
        ("eth", "eth0", None, True),
        ("eth", "xeth0", None, False),
        ("eth0,ib", "ib3", None, True),
        ("=eth0,eth1", "eth1", None, True),
        ("^docker,lo", "lo", None, False),
        ("^=eth0", "eth01", None, True),
        ("=mlx5_0:2", "mlx5_0", 1, False),
        ("=mlx5_0:2", "mlx5_0", 2, True),
        ("=mlx5_0", "mlx5_0", 2, True),
    ],
)
def test_lists_of_names(names: str, name: str, port: int | None, expected: bool) -> None:
    assert matcher(names)(name, port) is expected
