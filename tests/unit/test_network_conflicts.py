"""What fights the computed variables: configuration files, the inventory's env, a NIC's other address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from network_facts import decision, host, infiniband, nic, roce, table

from mnt.facts.host import HostFacts
from mnt.facts.nccl import ConfFile
from mnt.network.conflicts import Conflict, conflicts

HOME, SYSTEM = "/home/ubuntu/.nccl.conf", "/etc/nccl.conf"


def tcp_host(number: int = 1, **facts: Any) -> HostFacts:
    return host(nic("eth0", f"10.0.0.{number}/24"), **facts)


def roce_host(**facts: Any) -> HostFacts:
    device = roce("mlx5_0", "eth0", table("eth0", "10.0.0.1"))
    return host(nic("eth0", "10.0.0.1/24"), hcas=[device], **facts)


def conf(*lines: str, path: str = HOME) -> tuple[ConfFile, ...]:
    return (ConfFile(path, "\n".join(lines)),)


def found(
    facts: Mapping[str, HostFacts], env: Mapping[str, str] | None = None, **network: Any
) -> list[Conflict]:
    settings = {name: {"env": env or {}} for name in facts}
    decided, hosts = decision(facts, settings, **network)
    return conflicts(decided, hosts, facts)


def said(
    facts: HostFacts, env: Mapping[str, str] | None = None, **network: Any
) -> list[tuple[str, bool, str]]:
    return [(each.variable, each.harmful, each.message) for each in found({"a": facts}, env, **network)]


def test_nothing_fights() -> None:
    assert said(tcp_host(nccl_conf=conf("# nothing", "", "PATH=/bin"))) == []


def test_a_file_that_the_environment_beats() -> None:
    (only,) = found({"a": tcp_host(nccl_conf=conf("#", "NCCL_SOCKET_IFNAME=eth1"))})
    assert only == Conflict(
        host="a",
        variable="NCCL_SOCKET_IFNAME",
        harmful=False,
        message=f"{HOME} line 2 has no effect: the environment of the job overrides it",
        found="NCCL_SOCKET_IFNAME=eth1",
        expected="NCCL_SOCKET_IFNAME==eth0",
        fix=f"remove NCCL_SOCKET_IFNAME from {HOME}",
    )


def test_a_file_that_says_the_same() -> None:
    assert said(tcp_host(nccl_conf=conf("NCCL_SOCKET_IFNAME==eth0"))) == []


def test_a_file_that_the_inventorys_env_beats() -> None:
    facts = tcp_host(nccl_conf=conf("NCCL_ALGO=Ring"))
    assert said(facts, {"NCCL_ALGO": "Tree"}) == [
        ("NCCL_ALGO", False, f"{HOME} line 1 has no effect: the environment of the job overrides it")
    ]


def test_a_file_that_adds_what_nobody_set() -> None:
    assert said(tcp_host(nccl_conf=conf("NCCL_ALGO=Ring", path=SYSTEM))) == [
        ("NCCL_ALGO", False, f"{SYSTEM} line 1 adds a variable to every job")
    ]


@pytest.mark.parametrize("line", ["NCCL_NVLS_ENABLE=0", "NCCL_ALGO=Ring", "NCCL_IB_TC=106"])
def test_an_administrators_choice_is_not_to_be_removed(line: str) -> None:
    (only,) = found({"a": tcp_host(nccl_conf=conf(line, path=SYSTEM))})
    name = line.split("=")[0]
    assert only.fix == f"set {name} in `env` of the inventory to use another value: that overrides the file"
    assert said(tcp_host(nccl_conf=conf(line, path=SYSTEM)), {name: line.split("=")[1]}) == []


def test_of_two_files_only_the_first_counts() -> None:
    files = (*conf("NCCL_ALGO=Ring"), *conf("NCCL_ALGO=Tree", path=SYSTEM))
    assert [message for _, _, message in said(tcp_host(nccl_conf=files))] == [
        f"{HOME} line 1 adds a variable to every job"
    ]


def test_blanks_around_the_equals_sign() -> None:
    assert said(tcp_host(nccl_conf=conf("NCCL_SOCKET_IFNAME = eth1"))) == [
        (
            "NCCL_SOCKET_IFNAME",
            False,
            f"{HOME} line 1 has no effect: NCCL reads the blanks as part of the name",
        )
    ]


@pytest.mark.parametrize(
    ("facts", "mode", "line", "effect"),
    [
        (
            roce_host,
            "rdma",
            "NCCL_IB_GID_INDEX=1",
            "a fixed index disables the address range: every RoCE port uses GID 1",
        ),
        (roce_host, "rdma", "NCCL_IB_DISABLE=1", "NCCL uses sockets instead of RDMA"),
        (roce_host, "rdma", "NCCL_NET=Socket", "NCCL uses the network Socket or fails"),
        (tcp_host, "tcp", "NCCL_NET=IB", "NCCL uses the network IB or fails"),
        (
            tcp_host,
            "tcp",
            "NCCL_NET_PLUGIN=aws-ofi",
            "a network plugin replaces NCCL's own sockets and RDMA, and has its own variables",
        ),
        (
            tcp_host,
            "tcp",
            "NCCL_SOCKET_FAMILY=AF_INET6",
            "NCCL looks for IPv6 addresses, but the training NIC was chosen by its IPv4 address",
        ),
        (
            tcp_host,
            "tcp",
            "NCCL_COMM_ID=10.0.0.9:1234",
            "NCCL uses 10.0.0.9:1234 as its rendezvous, not the one of torch",
        ),
    ],
)
def test_what_makes_computed_variables_void(facts: Any, mode: str, line: str, effect: str) -> None:
    name, _, value = line.partition("=")
    assert said(facts(nccl_conf=conf(line)), mode=mode) == [(name, True, f"{HOME} line 1: {effect}")]
    assert said(facts(), {name: value}, mode=mode) == [(name, True, f"the inventory's env: {effect}")]


@pytest.mark.parametrize(
    ("facts", "mode", "line"),
    [
        (roce_host, "rdma", "NCCL_IB_GID_INDEX=-1"),
        (roce_host, "rdma", "NCCL_IB_DISABLE=0"),
        (roce_host, "rdma", "NCCL_NET=IB"),
        (tcp_host, "tcp", "NCCL_NET=socket"),
        (tcp_host, "tcp", "NCCL_IB_GID_INDEX=3"),
        (tcp_host, "tcp", "NCCL_NET_PLUGIN=none"),
        (tcp_host, "tcp", "NCCL_SOCKET_FAMILY=AF_INET"),
    ],
)
def test_the_same_variables_where_they_do_no_harm(facts: Any, mode: str, line: str) -> None:
    name, _, value = line.partition("=")
    assert [harmful for _, harmful, _ in said(facts(nccl_conf=conf(line)), mode=mode)] == [False]
    assert said(facts(), {name: value}, mode=mode) == []


def test_an_index_on_infiniband_is_ignored_anyway() -> None:
    facts = host(nic("eth0", "10.0.0.1/24"), hcas=[infiniband("mlx5_0")])
    assert said(facts, {"NCCL_IB_GID_INDEX": "3"}, mode="rdma") == []


def test_the_inventorys_env_overrides_a_computed_value() -> None:
    (only,) = found({"a": tcp_host()}, {"NCCL_SOCKET_IFNAME": "bond0"}, mode="tcp")
    assert (only.variable, only.harmful, only.found) == (
        *("NCCL_SOCKET_IFNAME", True, "NCCL_SOCKET_IFNAME=bond0"),
    )
    assert only.expected.startswith("NCCL_SOCKET_IFNAME==eth0 (eth0: ")


def test_another_conf_file_was_not_looked_at() -> None:
    (only,) = said(tcp_host(), {"NCCL_CONF_FILE": "/shared/nccl.conf"})
    assert only[2].endswith(
        "NCCL reads /shared/nccl.conf instead of ~/.nccl.conf, and mnt does not check that file"
    )


def test_the_training_address_is_not_the_first_of_its_nic() -> None:
    facts = host(nic("eth0", "192.168.7.7/24", "10.0.0.1/24"))
    (only,) = found({"a": facts}, mode="tcp", subnet="10.0.0.0/24")
    assert (only.variable, only.found, only.expected) == (
        *("NCCL_SOCKET_IFNAME", "eth0 192.168.7.7", "eth0 10.0.0.1"),
    )


def test_one_host_id_on_a_shared_home_makes_one_machine_of_two() -> None:
    shared = conf("NCCL_HOSTID=cluster")
    both = found({"a": tcp_host(1, nccl_conf=shared), "b": tcp_host(2, nccl_conf=shared)})
    harmful = [each for each in both if each.harmful]
    assert [(each.host, each.message) for each in harmful] == [
        ("a", "2 nodes have the same NCCL_HOSTID: NCCL treats them as one machine"),
        ("b", "2 nodes have the same NCCL_HOSTID: NCCL treats them as one machine"),
    ]
    other = {"a": tcp_host(1, nccl_conf=shared), "b": tcp_host(2, nccl_conf=conf("NCCL_HOSTID=b"))}
    assert not [each for each in found(other) if each.harmful]


def test_a_host_without_a_nic_has_nothing_to_fight_over() -> None:
    facts = host(nic("eth0", v6=["2001:db8::1/64"]), nccl_conf=conf("NCCL_ALGO=Ring"))
    assert said(facts, nic="eth0") == []
