"""What the ranks of a trial really used of a node's network, and whether that is what was set. Pure.

NCCL says it itself, with NCCL_DEBUG=INFO; of gloo, which says nothing, the ranks' own sockets tell.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mnt.facts.host import Interface
from mnt.facts.trial import Trial
from mnt.network.decision import NodeNetwork
from mnt.network.expected import matcher
from mnt.network.nic import NicChoice

_NETWORK = "Using network "
_INTERFACE = re.compile(r"(?:\[\d+\]|OOB )([^\s:]+):(\S+?)<\d+>")  # [0]eth0:10.0.0.1<0>
_HCA = re.compile(r"([^\s:\]{]+):(\d+)/(?:RoCE|IB)\b")  # [0]mlx5_6:1/RoCE


@dataclass(frozen=True)
class Used:
    """What carried a node's part. `interfaces` are `name address`: with `hcas`, the bootstrap's only."""

    backend: str  # nccl or gloo
    transport: str  # Socket, IB, or a plugin's name, as NCCL says it
    interfaces: tuple[str, ...]
    hcas: Mapping[str, int | None] = field(default_factory=dict)  # `mlx5_0:1` -> GID index, as far as seen
    said: tuple[str, ...] = ()  # how it is known: NCCL's own lines, or the sockets

    def labels(self) -> list[str]:
        """`mlx5_0:1 GID 3`."""
        return [hca if gid is None else f"{hca} GID {gid}" for hca, gid in self.hcas.items()]

    def __str__(self) -> str:
        over = ", ".join(self.interfaces) or "nothing that was seen"
        if self.hcas:
            return f"RDMA over {', '.join(self.labels())}; bootstrap over {over}"
        name = "sockets" if self.transport == "Socket" else self.transport
        return f"{name} over {over}"


def read_used(trial: Trial, host: str, interfaces: Sequence[Interface]) -> Used | None:
    """What a host used; None where the trial does not tell.

    Args:
        interfaces: of the host, to name its addresses.
    """
    if trial.backend == "nccl":
        return read_nccl(trial.network.get(host, ()), trial.gids.get(host, {}))
    return read_gloo(trial.sockets.get(host, ()), interfaces)


def read_nccl(said: Sequence[str], gids: Mapping[int, int]) -> Used | None:
    """By NCCL's lines `NET/.. : Using ..` and `Using network ..`, each less what precedes it.

    Args:
        gids: GID indices by NCCL's number of the device; without a meaning where it merges devices.
    """
    named = [line.removeprefix(_NETWORK) for line in said if line.startswith(_NETWORK)]
    chosen = [line for line in said if not line.startswith(_NETWORK)]
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
        interfaces=tuple(dict.fromkeys(f"{name} {address}" for name, address in _INTERFACE.findall(text))),
        hcas={label: known.get(number) for number, label in enumerate(found)},
        said=tuple(said),
    )


def read_gloo(sockets: Sequence[tuple[str, str]], interfaces: Sequence[Interface]) -> Used | None:
    """By (local address, the peer's), the peer empty where the socket listens."""
    if not sockets:
        return None
    owners = {address.split("/")[0]: nic.name for nic in interfaces for address in (*nic.ipv4, *nic.ipv6)}
    used = dict.fromkeys(local for local, _ in sockets)
    return Used(
        backend="gloo",
        transport="Socket",
        interfaces=tuple(f"{owners.get(address) or _unowned(address)} {address}" for address in used),
        said=tuple(f"{local} to {peer}" if peer else f"{local} listens" for local, peer in sockets),
    )


def _unowned(address: str) -> str:
    return "lo" if ipaddress.ip_address(address).is_loopback else "?"


def differences(used: Used, network: NodeNetwork, variables: Mapping[str, str], mode: str) -> tuple[str, ...]:
    """How that is not what the node was told; empty: it is.

    Args:
        variables: the node's, the inventory's `env` included.
        mode: tcp or rdma.
    """
    found = list(_other_interfaces(used, network, variables))
    if used.backend == "nccl":
        found += _other_hcas(used, network, variables, mode)
    return tuple(found)


def _other_interfaces(used: Used, network: NodeNetwork, variables: Mapping[str, str]) -> Iterator[str]:
    variable = "GLOO_SOCKET_IFNAME" if used.backend == "gloo" else "NCCL_SOCKET_IFNAME"
    told = variables.get(variable, "")
    # gloo takes plain names, which are NCCL's exact ones.
    matches = matcher(f"={told}" if used.backend == "gloo" else told)
    if not used.interfaces:
        yield f"no interface was seen; set is {variable}={told}"
    for interface in used.interfaces:
        name, address = interface.split(" ")
        nic = network.nic
        if not matches(name, None):
            yield f"{interface} is used; set is {variable}={told}"
        elif isinstance(nic, NicChoice) and name == nic.interface.name and address != nic.address:
            yield f"{name} is used with {address}, not with its training address {nic.address}"


def _other_hcas(used: Used, network: NodeNetwork, variables: Mapping[str, str], mode: str) -> Iterator[str]:
    if mode == "tcp":
        if used.hcas:
            yield f"RDMA over {', '.join(used.hcas)} is used; the mode is tcp"
        return
    if not used.hcas:
        yield f"no RDMA port is used, but {used.transport}; the mode is rdma"
        return
    told = variables.get("NCCL_IB_HCA", "")
    matches = matcher(told)
    for label in used.hcas:
        device, _, port = label.rpartition(":")
        if not matches(device, int(port)):
            yield f"{label} is used; set is NCCL_IB_HCA={told}"
    for hca in network.hcas:
        label = f"{hca.label.partition(':')[0]}:{hca.port.number}"
        gid = used.hcas.get(label)
        if label not in used.hcas:
            yield f"{label} is not used; set is NCCL_IB_HCA={told}"
        elif hca.gid is not None and gid is not None and gid != hca.gid.index:
            yield f"{label} is used with GID {gid}, not {hca.gid.index}"
