"""Settings that conflict with the computed variables: NCCL's files and the inventory's `env`. Pure.

The environment overrides the configuration files, so a file cannot change what `mnt` sets. But a file can add
variables that are not set otherwise, and some of these make others ineffective.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mnt.facts.host import HostFacts
from mnt.facts.nccl import effective, settings
from mnt.inventory.model import Host
from mnt.network.decision import NetworkDecision, NodeNetwork
from mnt.network.nic import NicChoice


@dataclass(frozen=True)
class Conflict:
    """A conflict about one variable of a node."""

    host: str
    variable: str
    harmful: bool  # whether the job runs with other settings than decided; else the conflict is information
    message: str
    found: str
    expected: str
    fix: str


def conflicts(
    decision: NetworkDecision, hosts: Sequence[Host], facts: Mapping[str, HostFacts]
) -> list[Conflict]:
    """Every conflict on every node that has variables, in rank order."""
    found: list[Conflict] = []
    for host in hosts:
        node = decision.nodes.get(host.name)
        if node is not None and isinstance(node.nic, NicChoice) and host.name in facts:
            found += _of_files(decision.mode, host, node, facts[host.name])
            found += _of_inventory(decision.mode, host, node)
            found += _other_address(host, node.nic)
    return [*found, *_one_host_id(decision, hosts, facts)]


def _of_files(mode: str, host: Host, node: NodeNetwork, facts: HostFacts) -> Iterator[Conflict]:
    job = {**{variable.name: variable.value for variable in node.variables}, **host.env}
    for setting in settings(facts.nccl_conf).values():
        name = setting.name.strip()
        where, found = f"{setting.path} line {setting.line}", f"{setting.name}={setting.value}"
        fix = f"remove {shlex.quote(name)} from {shlex.quote(setting.path)}"
        if not name.startswith("NCCL_"):
            continue
        if name != setting.name:
            message = f"{where} has no effect: NCCL reads the blanks as part of the name"
            yield Conflict(host.name, name, False, message, found, "no blanks around `=`", fix)
        elif name in job:
            if setting.value != job[name]:
                message = f"{where} has no effect: the environment of the job overrides it"
                yield Conflict(host.name, name, False, message, found, f"{name}={job[name]}", fix)
        elif effect := _effect(mode, node, name, setting.value):
            yield Conflict(host.name, name, True, f"{where}: {effect}", found, f"no {name}", fix)
        else:
            message = f"{where} adds a variable to every job"
            fix = f"set {name} in `env` of the inventory to use another value: that overrides the file"
            yield Conflict(host.name, name, False, message, found, "a choice of the administrator", fix)


def _of_inventory(mode: str, host: Host, node: NodeNetwork) -> Iterator[Conflict]:
    """Variables of the inventory's `env` that override computed ones, or make them ineffective."""
    computed = {variable.name: variable for variable in node.variables}
    for name, value in host.env.items():
        own = computed.get(name)
        if own is not None and own.value != value:
            message = f"the inventory's env overrides the computed {name}"
            expected = f"{name}={own.value} ({own.reason})"
        elif own is None and (effect := _effect(mode, node, name, value)):
            message, expected = f"the inventory's env: {effect}", f"no {name}"
        else:
            continue
        fix = f"remove {name} from `env` in the inventory"
        yield Conflict(host.name, name, True, message, f"{name}={value}", expected, fix)


def _other_address(host: Host, nic: NicChoice) -> Iterator[Conflict]:
    first = nic.interface.addresses[0]
    if first != nic.address:
        yield Conflict(
            host.name,
            "NCCL_SOCKET_IFNAME",
            True,
            f"NCCL uses the first address of {nic.interface.name}: it accepts only the name of a NIC",
            f"{nic.interface.name} {first}",
            f"{nic.interface.name} {nic.address}",
            f"make {nic.address} the first address of {nic.interface.name}, or move it to a separate NIC",
        )


def _one_host_id(
    decision: NetworkDecision, hosts: Sequence[Host], facts: Mapping[str, HostFacts]
) -> Iterator[Conflict]:
    """Nodes with the same NCCL_HOSTID: NCCL treats them as one machine."""
    environments = {
        host.name: effective(host.env, facts[host.name].nccl_conf)
        for host in hosts
        if host.name in decision.nodes and host.name in facts
    }
    ids = {name: each["NCCL_HOSTID"] for name, each in environments.items() if each.get("NCCL_HOSTID")}
    nodes_with = Counter(ids.values())
    for name, value in ids.items():
        if nodes_with[value] > 1:
            yield Conflict(
                name,
                "NCCL_HOSTID",
                True,
                f"{nodes_with[value]} nodes have the same NCCL_HOSTID: NCCL treats them as one machine",
                f"NCCL_HOSTID={value}",
                "no NCCL_HOSTID, or a different one on each node",
                "remove NCCL_HOSTID from `env` in the inventory, from ~/.nccl.conf and from /etc/nccl.conf",
            )


def _effect(mode: str, node: NodeNetwork, name: str, value: str) -> str | None:
    """How a variable that `mnt` does not set affects those that it sets; None: not at all."""
    ranged = any(variable.name == "NCCL_IB_ADDR_FAMILY" for variable in node.variables)
    effects = {  # variable -> whether this value has an effect, and which
        "NCCL_COMM_ID": (True, f"NCCL uses {value} as its rendezvous, not the one of torch"),
        "NCCL_CONF_FILE": (
            True,
            f"NCCL reads {value} instead of ~/.nccl.conf, and mnt does not check that file",
        ),
        "NCCL_IB_DISABLE": (value.strip() != "0", "NCCL uses sockets instead of RDMA"),
        "NCCL_IB_GID_INDEX": (
            ranged and not value.strip().startswith("-"),
            f"a fixed index disables the address range: every RoCE port uses GID {value}",
        ),
        "NCCL_NET": (
            value.lower() != ("socket" if mode == "tcp" else "ib"),
            f"NCCL uses the network {value} or fails",
        ),
        "NCCL_NET_PLUGIN": (
            value != "none",
            "a network plugin replaces NCCL's own sockets and RDMA, and has its own variables",
        ),
        "NCCL_SOCKET_FAMILY": (
            value == "AF_INET6",
            "NCCL looks for IPv6 addresses, but the training NIC was chosen by its IPv4 address",
        ),
    }
    harmful, effect = effects.get(name, (False, ""))
    return effect if harmful else None
