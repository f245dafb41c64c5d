"""From what hosts say to each node's variables: one case for each situation of a real machine room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from network_facts import DOCKER, LO, V1, decision, environments, gid, host, infiniband, nic, roce, table

from mnt.facts.host import HostFacts
from mnt.inventory.model import Rdma, Tuning

SUBNET = "10.0.0.0/24"
RANGE = {"NCCL_IB_ADDR_FAMILY": "AF_INET", "NCCL_IB_ROCE_VERSION_NUM": "2"}


def bound(name: str) -> dict[str, str]:
    return {"NCCL_SOCKET_IFNAME": f"={name}", "GLOO_SOCKET_IFNAME": name}


def tcp(name: str, **more: str) -> dict[str, str]:
    return {**bound(name), "NCCL_IB_DISABLE": "1", **more}


def ranged(name: str, hca: str, address_range: str | None = SUBNET, **more: str) -> dict[str, str]:
    """RoCE on NCCL 2.21 and newer."""
    network = {"NCCL_IB_ADDR_RANGE": address_range} if address_range else {}
    return {**bound(name), "NCCL_IB_HCA": hca, **network, **RANGE, **more}


def indexed(name: str, hca: str, index: int) -> dict[str, str]:
    """RoCE on an older NCCL, or as the inventory says."""
    return {**bound(name), "NCCL_IB_HCA": hca, "NCCL_IB_GID_INDEX": str(index)}


def on_ib(name: str, hca: str, **more: str) -> dict[str, str]:
    return {**bound(name), "NCCL_IB_HCA": hca, **more}


@dataclass(frozen=True)
class Case:
    """`expected` has, by host, the variables or `! why there are none`; `why` is in the mode's reason."""

    name: str
    hosts: Mapping[str, HostFacts]
    expected: Mapping[str, dict[str, str] | str]
    network: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    why: str = ""


def eth(name: str, number: int) -> Any:
    return nic(name, f"10.0.0.{number}/24")


def roce_host(name: str, netdev: str, number: int, *, first: int = 0, **facts: Any) -> HostFacts:
    """One NIC, and the RDMA device that is the same hardware."""
    address = f"10.0.0.{number}"
    return host(
        LO, eth(netdev, number), hcas=[roce(name, netdev, table(netdev, address, first=first))], **facts
    )


def ib_host(number: int, *devices: str, **facts: Any) -> HostFacts:
    """Ethernet for the first contact, InfiniBand without addresses for the data."""
    return host(LO, eth("eth0", number), hcas=[infiniband(name) for name in devices], **facts)


RAIL0 = roce("mlx5_0", "rail0", table("rail0", "10.1.0.1"))
RAIL1 = roce("mlx5_1", "rail1", table("rail1", "10.2.0.1", first=4))
RAILS = [nic("rail0", "10.1.0.1/24"), nic("rail1", "10.2.0.1/24")]
ETH0 = roce("mlx5_0", "eth0", table("eth0", "10.5.0.1"))
ETH1 = roce("mlx5_1", "eth1", table("eth1", "10.0.0.1"))
BOND_GIDS = [gid(0, "fe80::1", "bond0", V1), gid(3, "10.0.0.1", "bond0"), gid(5, "10.9.0.1", "bond0.2973")]
SIW = replace(ETH0, name="siw0", ports=(replace(ETH0.ports[0], link_layer="Unspecified"),))
LOWERS = {"bond0": ("eth0", "eth1"), "bond0.2973": ("bond0",)}
BOND = roce("mlx5_bond_0", "eth0", BOND_GIDS)

TCP = [
    Case(
        "the classic pair: another NIC name on each host",
        {"a": host(LO, eth("eth0", 1)), "b": host(LO, eth("enp26s0np0", 2))},
        {"a": tcp("eth0"), "b": tcp("enp26s0np0")},
        {"mode": "tcp"},
        why="network.mode is tcp",
    ),
    Case(
        "docker0 comes first in the kernel's order",
        {"a": host(LO, DOCKER, eth("eth0", 1)), "b": host(LO, DOCKER, eth("eth0", 2))},
        {"a": tcp("eth0"), "b": tcp("eth0")},
    ),
    Case(
        "a user-defined docker bridge, and the veth pairs of its containers",
        {
            "a": host(
                LO, nic("br-5c1f", "172.18.0.1/16"), nic("veth1a2b", v6=["fe80::2/64"]), eth("ens3", 1)
            ),
            "b": host(LO, nic("br-77aa", "172.18.0.1/16"), eth("ens3", 2)),
        },
        {"a": tcp("ens3"), "b": tcp("ens3")},
    ),
    Case(
        "libvirt's bridge has the same address on every host",
        {
            "a": host(LO, nic("virbr0", "192.168.122.1/24"), eth("eno1", 1)),
            "b": host(LO, nic("virbr0", "192.168.122.1/24"), eth("eno1", 2)),
        },
        {"a": tcp("eno1"), "b": tcp("eno1")},
    ),
    Case(
        "a BMC's USB network is excluded",
        {"a": host(eth("eno1", 1), nic("bmc0", "10.0.0.99/24")), "b": host(eth("eno1", 2))},
        {"a": tcp("eno1"), "b": tcp("eno1")},
        {"subnet": SUBNET},
        {"a": {"exclude": ("bmc*",)}},
    ),
    Case(
        "SSH goes over mgmt0, training over the other network",
        {
            "a": host(nic("mgmt0", "192.168.1.1/24"), eth("ens3f0", 1)),
            "b": host(nic("mgmt0", "192.168.1.2/24"), eth("eno1", 2)),
        },
        {"a": tcp("ens3f0"), "b": tcp("eno1")},
        {"subnet": SUBNET},
    ),
    Case(
        "two networks join all hosts, and nothing says which trains",
        {
            "a": host(nic("mgmt0", "192.168.1.1/24"), eth("eth0", 1)),
            "b": host(nic("mgmt0", "192.168.1.2/24"), eth("eth0", 2)),
        },
        {
            "a": "! several NICs reach every worker",
            "b": "! not decided until the master a has a training NIC",
        },
        why="auto: no host has a training NIC",
    ),
    Case(
        "the training NIC is a VLAN on a bond, and the bond has an address too",
        {
            "a": host(nic("bond0", "10.0.0.1/24"), nic("bond0.2973", "10.9.0.1/24"), lowers=LOWERS),
            "b": host(nic("bond0", "10.0.0.2/24"), nic("bond0.2973", "10.9.0.2/24"), lowers=LOWERS),
        },
        {"a": tcp("bond0.2973"), "b": tcp("bond0.2973")},
        {"subnet": "10.9.0.0/24"},
    ),
    Case(
        "eth1 and eth10: the name is exact",
        {"a": host(eth("eth1", 1), nic("eth10", "10.5.0.1/24")), "b": host(eth("eth1", 2))},
        {"a": tcp("eth1"), "b": tcp("eth1")},
    ),
    Case(
        "the NIC has only IPv6",
        {"a": host(nic("eth0", v6=["2001:db8::1/64"])), "b": host(nic("eth0", v6=["2001:db8::2/64"]))},
        {"a": "! NIC eth0 has no IPv4 address", "b": "! NIC eth0 has no IPv4 address"},
        {"nic": "eth0"},
    ),
    Case(
        "IPv6 beside IPv4 changes nothing",
        {"a": host(nic("eth0", "10.0.0.1/24", v6=["fe80::1/64"])), "b": host(eth("eth0", 2))},
        {"a": tcp("eth0"), "b": tcp("eth0")},
    ),
    Case(
        "one machine alone",
        {"a": host(LO, eth("eth0", 1))},
        {"a": tcp("eth0")},
        why="auto: a: there is no RDMA device",
    ),
    Case(
        "a WireGuard tunnel as the training network",
        {"a": host(nic("wg0", "10.0.0.1/24")), "b": host(nic("wg0", "10.0.0.2/24"))},
        {"a": tcp("wg0"), "b": tcp("wg0")},
        {"nic": "wg0"},
    ),
    Case(
        "sockets and threads for a 100 Gbit/s TCP network",
        {"a": host(eth("eth0", 1))},
        {"a": tcp("eth0", NCCL_SOCKET_NTHREADS="4", NCCL_NSOCKS_PERTHREAD="8")},
        {"mode": "tcp"},
        {"a": {"tuning": Tuning(socket_nthreads=4, nsocks_perthread=8)}},
    ),
    Case(
        "settings of RDMA are left out over TCP",
        {"a": host(eth("eth0", 1))},
        {"a": tcp("eth0", NCCL_BUFFSIZE="8388608", NCCL_P2P_LEVEL="SYS")},
        {"mode": "tcp"},
        {"a": {"tuning": Tuning(ib_timeout=22, ib_traffic_class=106, buffer_size=8388608, p2p_level="SYS")}},
    ),
    Case(
        "debugging one host of two",
        {"a": host(eth("eth0", 1)), "b": host(eth("eth0", 2))},
        {"a": tcp("eth0", NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET"), "b": tcp("eth0")},
        {"mode": "tcp"},
        {"a": {"tuning": Tuning(debug="INFO", debug_subsys=("INIT", "NET"))}},
    ),
    Case(
        "HCAs are there, and the inventory wants TCP",
        {"a": roce_host("mlx5_0", "eth0", 1)},
        {"a": tcp("eth0")},
        {"mode": "tcp"},
    ),
]

ROCE = [
    Case(
        "RoCE on the training NIC of every host",
        {"a": roce_host("mlx5_0", "eth0", 1), "b": roce_host("mlx5_0", "eth0", 2)},
        {"a": ranged("eth0", "=mlx5_0"), "b": ranged("eth0", "=mlx5_0")},
        why="auto: every node has an active RDMA port",
    ),
    Case(
        "mlx5_1 trains, and there is an mlx5_10: the name is exact",
        {
            "a": host(
                eth("eth1", 1),
                nic("eth10", "10.5.0.1/24"),
                hcas=[
                    roce("mlx5_1", "eth1", table("eth1", "10.0.0.1")),
                    roce("mlx5_10", "eth10", table("eth10", "10.5.0.1")),
                ],
            )
        },
        {"a": ranged("eth1", "=mlx5_1")},
        {"subnet": SUBNET},
    ),
    Case(
        "GID 7 in a table whose slots 0 to 5 are empty",
        {
            "a": host(
                eth("eth0", 1), hcas=[roce("mlx5_0", "eth0", [gid(7, "10.0.0.1", "eth0")])], nccl="2.20.5"
            )
        },
        {"a": indexed("eth0", "=mlx5_0", 7)},
        {"mode": "rdma"},
    ),
    Case(
        "another index on each node: one range finds both",
        {"a": roce_host("mlx5_0", "eth0", 1), "b": roce_host("mlx5_2", "ens3", 2, first=4)},
        {"a": ranged("eth0", "=mlx5_0"), "b": ranged("ens3", "=mlx5_2")},
    ),
    Case(
        "another index on each node, before NCCL 2.21: each gets its own",
        {
            "a": roce_host("mlx5_0", "eth0", 1, nccl="2.20.5"),
            "b": roce_host("mlx5_0", "eth0", 2, first=4, nccl="2.20.5"),
        },
        {"a": indexed("eth0", "=mlx5_0", 3), "b": indexed("eth0", "=mlx5_0", 7)},
    ),
    Case(
        "one node has an older NCCL: what it understands is said to all",
        {"a": roce_host("mlx5_0", "eth0", 1, nccl="2.18.1"), "b": roce_host("mlx5_0", "eth0", 2)},
        {"a": indexed("eth0", "=mlx5_0", 3), "b": indexed("eth0", "=mlx5_0", 3)},
    ),
    Case(
        "nobody knows the version of NCCL: taken for a current one",
        {"a": roce_host("mlx5_0", "eth0", 1, nccl=None)},
        {"a": ranged("eth0", "=mlx5_0")},
    ),
    Case(
        "the version of NCCL from the package alone",
        {"a": roce_host("mlx5_0", "eth0", 1, nccl=None, packages={"nvidia-nccl-cu12": "2.19.3"})},
        {"a": indexed("eth0", "=mlx5_0", 3)},
    ),
    Case(
        "the inventory gives the index",
        {"a": roce_host("mlx5_0", "eth0", 1)},
        {"a": indexed("eth0", "=mlx5_0", 3)},
        settings={"a": {"rdma": Rdma(gid_index=3)}},
    ),
    Case(
        "the inventory gives the index of one host only",
        {"a": roce_host("mlx5_0", "eth0", 1), "b": roce_host("mlx5_0", "eth0", 2)},
        {"a": indexed("eth0", "=mlx5_0", 3), "b": ranged("eth0", "=mlx5_0")},
        settings={"a": {"rdma": Rdma(gid_index=3)}},
    ),
    Case(
        "rails in networks that no range holds: NCCL finds both GIDs without one",
        {
            "a": host(
                eth("eth0", 1),
                nic("rail0", "10.1.0.1/24"),
                nic("rail1", "192.168.2.1/24"),
                hcas=[RAIL0, roce("mlx5_1", "rail1", table("rail1", "192.168.2.1"))],
            )
        },
        {"a": ranged("eth0", "=mlx5_0,mlx5_1", None)},
        {"nic": "eth0"},
    ),
    Case(
        "the inventory gives an index of RoCE v1",
        {"a": roce_host("mlx5_0", "eth0", 1)},
        {"a": "! mlx5_0 port 1 has no RoCE v2 GID at index 2"},
        {"mode": "rdma"},
        {"a": {"rdma": Rdma(gid_index=2)}},
    ),
    Case(
        "only RoCE v1 is configured",
        {"a": host(eth("eth0", 1), hcas=[roce("mlx5_0", "eth0", [gid(0, "10.0.0.1", "eth0", V1)])])},
        {"a": "! mlx5_0 port 1 has no RoCE v2 GID for an IPv4 address of its interface"},
        {"mode": "rdma"},
    ),
    Case(
        "only link-local GIDs: the NIC got its address elsewhere",
        {"a": host(eth("eth0", 1), hcas=[roce("mlx5_0", "eth0", table("eth0"))])},
        {"a": "! mlx5_0 port 1 has no RoCE v2 GID for an IPv4 address of its interface"},
        {"mode": "rdma"},
    ),
    Case(
        "the kernel does not tell the GIDs' netdevs",
        {"a": host(eth("eth0", 1), hcas=[roce("mlx5_0", "eth0", [gid(3, "10.0.0.1", None)])])},
        {"a": "! mlx5_0 port 1 has no RoCE v2 GID for an IPv4 address of its interface"},
        {"mode": "rdma"},
    ),
    Case(
        "a LAG: the device hangs on the slaves, the GIDs are the bond's",
        {"a": host(nic("bond0", "10.0.0.1/24"), hcas=[BOND], lowers=LOWERS, nccl="2.19.3")},
        {"a": indexed("bond0", "=mlx5_bond_0", 3)},
    ),
    Case(
        "a VLAN on a LAG has a GID of its own",
        {
            "a": host(
                nic("bond0", "10.0.0.1/24"), nic("bond0.2973", "10.9.0.1/24"), hcas=[BOND], lowers=LOWERS
            )
        },
        {"a": ranged("bond0.2973", "=mlx5_bond_0", "10.9.0.0/24")},
        {"subnet": "10.9.0.0/24"},
    ),
    Case(
        "a VLAN on a LAG that has no GID: its bond's GID is not taken for it",
        {
            "a": host(
                nic("bond0", "10.0.0.1/24"),
                nic("bond0.2973", "10.9.0.1/24"),
                hcas=[roce("mlx5_bond_0", "eth0", BOND_GIDS[:2])],
                lowers=LOWERS,
            )
        },
        {"a": "! mlx5_bond_0 port 1 has no RoCE v2 GID for an IPv4 address of its interface"},
        {"mode": "rdma", "subnet": "10.9.0.0/24"},
    ),
    Case(
        "the NIC has two addresses: the range picks the training one",
        {
            "a": host(
                nic("eth0", "192.168.7.7/24", "10.0.0.1/24"),
                hcas=[roce("mlx5_0", "eth0", table("eth0", "192.168.7.7", "10.0.0.1"))],
            )
        },
        {"a": ranged("eth0", "=mlx5_0")},
        {"subnet": SUBNET},
    ),
    Case(
        "slot 0 is an IPv4 of RoCE v2: no range moves NCCL away from it, an index does",
        {
            "a": host(
                nic("eth0", "192.168.7.7/24", "10.0.0.1/24"),
                hcas=[roce("irdma0", "eth0", [gid(0, "192.168.7.7", "eth0"), gid(1, "10.0.0.1", "eth0")])],
            )
        },
        {"a": indexed("eth0", "=irdma0", 1)},
        {"subnet": SUBNET},
    ),
    Case(
        "dual rail, one subnet each: the range covers both, and NCCL finds the right GIDs with it",
        {"a": host(eth("eth0", 1), *RAILS, hcas=[RAIL0, RAIL1])},
        {"a": ranged("eth0", "=mlx5_0,mlx5_1", "10.0.0.0/14")},
        {"nic": "eth0"},
        {"a": {"rdma": Rdma(("mlx5_0", "mlx5_1"))}},
    ),
    Case(
        "dual rail, each with another index, before NCCL 2.21",
        {"a": host(eth("eth0", 1), *RAILS, hcas=[RAIL0, RAIL1], nccl="2.20.5")},
        {"a": "! the devices need different GID indices, but NCCL takes one index for all devices"},
        {"nic": "eth0", "mode": "rdma"},
        {"a": {"rdma": Rdma(("mlx5_0", "mlx5_1"))}},
    ),
    Case(
        "rails that nobody named, beside a training NIC without RDMA: all of them",
        {"a": host(eth("eth0", 1), *RAILS, hcas=[RAIL0, RAIL1])},
        {"a": ranged("eth0", "=mlx5_0,mlx5_1", "10.0.0.0/14")},
        {"nic": "eth0"},
    ),
    Case(
        "the training NIC is one of two rails: only its own device",
        {"a": host(*RAILS, hcas=[RAIL0, RAIL1])},
        {"a": ranged("rail1", "=mlx5_1", "10.2.0.0/24")},
        {"nic": "rail1"},
    ),
    Case(
        "both ports of one card: the port of the NIC",
        {
            "a": host(
                eth("eth1", 1),
                nic("eth0", "10.5.0.1/24"),
                hcas=[replace(ETH0, name="mlx4_0", ports=(*ETH0.ports, replace(ETH1.ports[0], number=2)))],
            )
        },
        {"a": ranged("eth1", "=mlx4_0:2")},
        {"subnet": SUBNET},
    ),
]

INFINIBAND = [
    Case(
        "InfiniBand beside Ethernet: no GID is spoken of",
        {"a": ib_host(1, "mlx5_0"), "b": ib_host(2, "mlx5_0")},
        {"a": on_ib("eth0", "=mlx5_0"), "b": on_ib("eth0", "=mlx5_0")},
        why="auto: every node has an active RDMA port",
    ),
    Case(
        "IPoIB carries the first contact: its device trains",
        {
            "a": host(
                nic("ib0", "10.0.0.1/24"), hcas=[infiniband("mlx5_4", "ib0"), infiniband("mlx5_5", "ib1")]
            )
        },
        {"a": on_ib("ib0", "=mlx5_4")},
    ),
    Case(
        "InfiniBand ignores an index of the inventory",
        {"a": ib_host(1, "mlx5_0", nccl="2.18.1")},
        {"a": on_ib("eth0", "=mlx5_0")},
        settings={"a": {"rdma": Rdma(gid_index=3)}},
    ),
    Case(
        "eight HCAs, two of them named, and the GPUs' distance",
        {"a": ib_host(1, *(f"mlx5_{i}" for i in range(8)))},
        {"a": on_ib("eth0", "=mlx5_6,mlx5_7", NCCL_NET_GDR_LEVEL="PIX")},
        {"mode": "rdma"},
        {"a": {"rdma": Rdma(("mlx5_6", "mlx5_7"), gdr_level="PIX")}},
    ),
    Case(
        "one port of a device is named",
        {"a": ib_host(1, "mlx5_0")},
        {"a": on_ib("eth0", "=mlx5_0:1")},
        {"mode": "rdma"},
        {"a": {"rdma": Rdma(("mlx5_0:1",))}},
    ),
    Case(
        "a storage HCA is excluded",
        {"a": ib_host(1, "mlx5_0", "mlx5_1", "mlx5_9")},
        {"a": on_ib("eth0", "=mlx5_0,mlx5_1")},
        settings={"a": {"exclude": ("mlx5_9",)}},
    ),
    Case(
        "an HCA without a cable beside one that is up",
        {"a": host(eth("eth0", 1), hcas=[infiniband("mlx5_0", state="DOWN"), infiniband("mlx5_1")])},
        {"a": on_ib("eth0", "=mlx5_1")},
    ),
    Case(
        "tuning of a large InfiniBand fabric",
        {"a": ib_host(1, "mlx5_0")},
        {
            "a": on_ib(
                "eth0",
                "=mlx5_0",
                NCCL_CROSS_NIC="0",
                NCCL_TOPO_FILE="/etc/topo.xml",
                NCCL_IB_TIMEOUT="22",
                NCCL_IB_RETRY_CNT="7",
                NCCL_IB_TC="0",
                NCCL_IB_SL="1",
                NCCL_IB_QPS_PER_CONNECTION="4",
            )
        },
        settings={
            "a": {
                "tuning": Tuning(
                    socket_nthreads=4,  # has no meaning here
                    cross_nic=0,
                    topo_file="/etc/topo.xml",
                    ib_timeout=22,
                    ib_retry_count=7,
                    ib_traffic_class=0,
                    ib_service_level=1,
                    ib_qps_per_connection=4,
                )
            }
        },
    ),
    Case(
        "InfiniBand and RoCE on one host, and nobody says which",
        {"a": host(eth("eno1", 1), hcas=[infiniband("mlx5_0"), ETH0])},
        {"a": "! InfiniBand and RoCE ports cannot train together"},
        {"mode": "rdma"},
    ),
]

MIXED = [
    Case(
        "one node without an HCA",
        {"a": roce_host("mlx5_0", "eth0", 1), "b": host(LO, eth("eth0", 2))},
        {"a": tcp("eth0"), "b": tcp("eth0")},
        why="auto: b: there is no RDMA device",
    ),
    Case(
        "one node without an HCA, and RDMA is wanted",
        {"a": roce_host("mlx5_0", "eth0", 1), "b": host(LO, eth("eth0", 2))},
        {"a": ranged("eth0", "=mlx5_0"), "b": "! there is no RDMA device"},
        {"mode": "rdma"},
        why="network.mode is rdma",
    ),
    Case(
        "one port is down",
        {
            "a": roce_host("mlx5_0", "eth0", 1),
            "b": host(eth("eth0", 2), hcas=[roce("mlx5_0", "eth0", [], state="DOWN")]),
        },
        {"a": tcp("eth0"), "b": tcp("eth0")},
        why="auto: b: no port of mlx5_0 is active",
    ),
    Case(
        "a named device is down, and another is up: the inventory is not second-guessed",
        {"a": host(eth("eth0", 1), hcas=[infiniband("mlx5_6", state="INIT"), infiniband("mlx5_7")])},
        {"a": "! no port of mlx5_6 is active"},
        {"mode": "rdma"},
        {"a": {"rdma": Rdma(("mlx5_6", "mlx5_7"))}},
    ),
    Case(
        "a named device is not there",
        {"a": ib_host(1, "mlx5_0")},
        {"a": "! there is no RDMA device mlx5_6"},
        {"mode": "rdma"},
        {"a": {"rdma": Rdma(("mlx5_6",))}},
    ),
    Case(
        "a named port is not there",
        {"a": ib_host(1, "mlx5_0")},
        {"a": "! mlx5_0 has no port 2"},
        {"mode": "rdma"},
        {"a": {"rdma": Rdma(("mlx5_0:2",))}},
    ),
    Case(
        "the user may not open the device",
        {"a": ib_host(1, "mlx5_0"), "b": host(eth("eth0", 2), hcas=[infiniband("mlx5_0", usable=False)])},
        {"a": tcp("eth0"), "b": tcp("eth0")},
        why="auto: b: no RDMA port is active",
    ),
    Case(
        "the user may not open the device that is named",
        {"a": host(eth("eth0", 2), hcas=[infiniband("mlx5_0", usable=False)])},
        {"a": "! the user who logs in has no access to mlx5_0"},
        {"mode": "rdma"},
        {"a": {"rdma": Rdma(("mlx5_0",))}},
    ),
    Case(
        "two nodes on InfiniBand and one on RoCE",
        {"a": ib_host(1, "mlx5_0"), "b": ib_host(2, "mlx5_0"), "c": roce_host("mlx5_0", "eth0", 3)},
        {"a": tcp("eth0"), "b": tcp("eth0"), "c": tcp("eth0")},
        why="auto: c: its RDMA ports are RoCE, but those of most nodes are InfiniBand",
    ),
    Case(
        "another device name on each node, each said in the inventory",
        {"a": ib_host(1, "mlx5_0", "mlx5_1"), "b": ib_host(2, "ibp12s0")},
        {"a": on_ib("eth0", "=mlx5_1"), "b": on_ib("eth0", "=ibp12s0")},
        settings={"a": {"rdma": Rdma(("mlx5_1",))}, "b": {"rdma": Rdma(("ibp12s0",))}},
    ),
    Case(
        "a host that did not tell of its devices",
        {"a": ib_host(1, "mlx5_0"), "b": replace(host(eth("eth0", 2)), rdma=None)},
        {"a": tcp("eth0"), "b": tcp("eth0")},
        why="auto: b did not report its RDMA devices",
    ),
    Case(
        "a host that did not tell of its devices, and the inventory names them",
        {"a": replace(host(eth("eth0", 1)), rdma=None)},
        {"a": on_ib("eth0", "=mlx5_0")},
        {"mode": "rdma"},
        {"a": {"rdma": Rdma(("mlx5_0",))}},
    ),
    Case(
        "iWARP or another link layer",
        {"a": host(eth("eth0", 1), hcas=[SIW])},
        {"a": "! siw0 is neither InfiniBand nor RoCE"},
        {"mode": "rdma"},
    ),
]


@pytest.mark.parametrize("case", [*TCP, *ROCE, *INFINIBAND, *MIXED], ids=lambda case: case.name)
def test_environment(case: Case) -> None:
    decided, _ = decision(case.hosts, case.settings, **case.network)
    assert environments(decided) == case.expected
    assert case.why in decided.reason
