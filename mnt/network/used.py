"""The network that the ranks of a trial really used, and whether it is the one that was set. Pure.

NCCL prints it with NCCL_DEBUG=INFO. gloo prints nothing, so there the sockets of the ranks show it.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mnt.facts.host import Interface
from mnt.facts.trial import Trial
from mnt.network.decision import NodeNetwork
from mnt.network.expected import matcher
from mnt.network.nic import NicChoice

_NETWORK = "Using network "
# A device's name has at most 127 characters, and an address with a zone not many more.
_INTERFACE = re.compile(r"(?:\[\d{1,9}\]|OOB )([^\s:]{1,127}):(\S{1,200}?)<\d{1,9}>")  # [0]eth0:10.0.0.1<0>
_HCA = re.compile(r"([^\s:\]{]{1,127}):([0-9]{1,9})/(?:RoCE|IB)\b")  # [0]mlx5_6:1/RoCE


class Carrier(NamedTuple):
    """An interface that was used, and the address."""

    name: str
    address: str

    def __str__(self) -> str:
        return f"{self.name} {self.address}"


@dataclass(frozen=True)
class Used:
    """The network that carried a node's traffic."""

    backend: str  # nccl or gloo
    transport: str  # Socket, IB, or the name of a plugin, as NCCL prints it
    interfaces: tuple[Carrier, ...]  # with `hcas` only the bootstrap used them
    hcas: Mapping[str, int | None] = field(default_factory=dict)  # `mlx5_0:1` -> GID index; None: unknown
    evidence: tuple[str, ...] = ()  # NCCL's own lines, or the sockets

    def labels(self) -> list[str]:
        """`mlx5_0:1 GID 3`."""
        return [hca if gid is None else f"{hca} GID {gid}" for hca, gid in self.hcas.items()]

    def __str__(self) -> str:
        over = ", ".join(map(str, self.interfaces)) or "an unknown interface"
        if self.hcas:
            return f"RDMA over {', '.join(self.labels())}; bootstrap over {over}"
        name = "sockets" if self.transport == "Socket" else self.transport
        return f"{name} over {over}"


def read_used(trial: Trial, host: str, interfaces: Sequence[Interface]) -> Used | None:
    """The network that a host used; None if the trial does not show it.

    Args:
        interfaces: the host's interfaces, to find the names of its addresses.
    """
    if trial.backends.get(host) == "nccl":
        return read_nccl(trial.nccl_lines.get(host, ()), trial.gids.get(host, {}))
    return read_gloo(trial.sockets.get(host, ()), interfaces)


def read_nccl(output: Sequence[str], gids: Mapping[int, int]) -> Used | None:
    """From NCCL's lines `NET/.. : Using ..` and `Using network ..`.

    Args:
        output: these lines, each without the text before `NET/` or `Using network`.
        gids: GID indices by NCCL's number of the device; not meaningful if NCCL merges devices.
    """
    named = [line.removeprefix(_NETWORK) for line in output if line.startswith(_NETWORK)]
    chosen = [line for line in output if not line.startswith(_NETWORK)]
    if not chosen and not named:
        return None
    sockets = [line for line in chosen if line.startswith("NET/Socket")]
    over_sockets = named[-1] == "Socket" if named else bool(sockets)
    lines = sockets if over_sockets else [line for line in chosen if line not in sockets]
    text = "\n".join(lines)
    found = dict.fromkeys(f"{device}:{port}" for device, port in _HCA.findall(text))
    known = {} if "{" in text else gids
    return Used(
        backend="nccl",
        transport=named[-1] if named else lines[-1].removeprefix("NET/").split(" ")[0].rstrip(":"),
        interfaces=tuple(dict.fromkeys(itertools.starmap(Carrier, _INTERFACE.findall(text)))),
        hcas={label: known.get(number) for number, label in enumerate(found)},
        evidence=tuple(output),
    )


def read_gloo(sockets: Sequence[tuple[str, str]], interfaces: Sequence[Interface]) -> Used | None:
    """From pairs (local address, peer address); a listening socket has an empty peer address."""
    if not sockets:
        return None
    names = {address.split("/")[0]: nic.name for nic in interfaces for address in (*nic.ipv4, *nic.ipv6)}
    used = dict.fromkeys(local for local, _ in sockets)
    return Used(
        backend="gloo",
        transport="Socket",
        interfaces=tuple(
            Carrier(names.get(address, "lo" if ipaddress.ip_address(address).is_loopback else "?"), address)
            for address in used
        ),
        evidence=tuple(f"{local} to {peer}" if peer else f"{local} listens" for local, peer in sockets),
    )


def differences(used: Used, network: NodeNetwork, variables: Mapping[str, str], mode: str) -> tuple[str, ...]:
    """The differences between what was used and what was set for the node; empty: there are none.

    Args:
        variables: the node's variables, including the inventory's `env`.
        mode: tcp or rdma.
    """
    found = list(_other_interfaces(used, network, variables))
    if used.backend == "nccl":
        found += _other_hcas(used, network, variables, mode)
    return tuple(found)


def _other_interfaces(used: Used, network: NodeNetwork, variables: Mapping[str, str]) -> Iterator[str]:
    variable = "GLOO_SOCKET_IFNAME" if used.backend == "gloo" else "NCCL_SOCKET_IFNAME"
    setting = variables.get(variable, "")
    # gloo takes plain names, which correspond to NCCL's exact names.
    matches = matcher(f"={setting}" if used.backend == "gloo" else setting)
    if not used.interfaces:
        yield f"it is unknown which interface was used, but {variable}={setting} is set"
    for interface in used.interfaces:
        name, address = interface
        nic = network.nic
        if not matches(name, None):
            yield f"{interface} is used, but {variable}={setting} is set"
        elif isinstance(nic, NicChoice) and name == nic.interface.name and address != nic.address:
            yield f"{name} is used with address {address}, not with its training address {nic.address}"


def _other_hcas(used: Used, network: NodeNetwork, variables: Mapping[str, str], mode: str) -> Iterator[str]:
    if mode == "tcp":
        if used.hcas:
            yield f"RDMA over {', '.join(used.hcas)} is used, but the mode is tcp"
        return
    if not used.hcas:
        yield f"{used.transport} is used and no RDMA port, but the mode is rdma"
        return
    setting = variables.get("NCCL_IB_HCA", "")
    matches = matcher(setting)
    for label in used.hcas:
        device, _, port = label.rpartition(":")
        if not matches(device, int(port)):
            yield f"{label} is used, but NCCL_IB_HCA={setting} is set"
    for hca in network.hcas:
        label = f"{hca.label.partition(':')[0]}:{hca.port.number}"
        gid = used.hcas.get(label)
        if label not in used.hcas:
            yield f"{label} is not used, but NCCL_IB_HCA={setting} is set"
        elif hca.gid is not None and gid is not None and gid != hca.gid.index:
            yield f"{label} is used with GID {gid}, not {hca.gid.index}"
