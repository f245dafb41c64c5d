"""The network that NCCL would choose by itself, in the order of NCCL 2.28 to 2.30. Pure.

This is a prediction and is shown as one. What NCCL really chooses is in the output of NCCL_DEBUG=INFO.
Sources: `ncclFindInterfaces`, `ncclOsFindInterfaces`, `ncclIbInitDevices`, `ncclIbGetGidIndex` in NCCL 2.30.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from mnt.facts.host import Interface
from mnt.facts.rdma import ETHERNET, INFINIBAND, Port, RdmaFacts
from mnt.network.gid import EVERYWHERE, FINDS_GIDS, index_nccl_takes
from mnt.remote.common.forms import NICS

# If neither NCCL_SOCKET_IFNAME nor an ib* interface nor NCCL_COMM_ID decides, NCCL tries these in order.
_GUESSES = (
    ("^docker,lo,virbr", "all but docker*, lo*, virbr*"),
    ("docker", "there is only docker*"),
    ("lo", "there is only lo*"),
    ("virbr", "there is only virbr*"),
)


@dataclass(frozen=True)
class Expected:
    """NCCL's own choice. `interfaces` are `name address`: the bootstrap uses the first, sockets use all."""

    interfaces: tuple[str, ...]
    hcas: tuple[str, ...]  # `mlx5_0:1 GID 3`; empty: sockets
    reason: str

    def __str__(self) -> str:
        if not self.interfaces:
            return "nothing: NCCL finds no interface and fails"
        first, *others = self.interfaces
        if self.hcas:
            return f"RDMA over {', '.join(self.hcas)}; bootstrap over {first}"
        return f"sockets over {first}" + (f", and {', '.join(others)}" if others else "")


def expect(
    interfaces: Sequence[Interface],
    rdma: RdmaFacts | None,
    environment: Mapping[str, str],
    version: tuple[int, ...] | None,
) -> Expected:
    """The network that NCCL would choose on a host.

    Args:
        environment: NCCL's settings there: the environment variables, and what its configuration files add.
        version: NCCL's version; None: unknown, treated as a current one.
    """
    chosen, reason = expect_interfaces(interfaces, environment)
    hcas = () if rdma is None else tuple(_expect_hcas(rdma, environment, version))
    return Expected(tuple(chosen), hcas, reason)


def expect_interfaces(
    interfaces: Sequence[Interface], environment: Mapping[str, str]
) -> tuple[list[str], str]:
    """The interfaces as `name address`, in NCCL's order, and the reason for the choice."""
    running = list(_in_order(interfaces, environment.get("NCCL_SOCKET_FAMILY")))
    configured = environment.get("NCCL_SOCKET_IFNAME", "")
    if len(configured) > 1:
        return _matching(running, configured), f"NCCL_SOCKET_IFNAME={configured}"
    if found := _matching(running, "ib"):
        return found, "its name begins with ib"
    if found := _near(running, environment.get("NCCL_COMM_ID", "")):
        return found, "in the subnet of NCCL_COMM_ID"
    for names, reason in _GUESSES:
        if found := _matching(running, names):
            return found, reason
    return [], "no interface is up"


def matcher(names: str) -> Callable[[str, int | None], bool]:
    """NCCL's match of a name, and of a port, with a list: `eth`, `=eth0,eth1`, `^docker`, `^=mlx5_0:1`.

    `^` (exclude) and `=` (exact) apply to the whole list. Without `=`, an entry matches every name that
    begins with it. More than NICS entries are not compared: no host has so many interfaces.
    """
    excluding = names.startswith("^")
    names = names.removeprefix("^")
    exact = names.startswith("=")
    listed = islice(filter(None, names.removeprefix("=").split(",")), NICS)
    entries = [entry.partition(":")[::2] for entry in listed]

    def matches(name: str, port: int | None = None) -> bool:
        hit = not entries or any(
            (name == entry if exact else name.startswith(entry))
            and (port is None or not number or number == str(port))
            for entry, number in entries
        )
        return hit != excluding

    return matches


def _in_order(interfaces: Sequence[Interface], family: str | None) -> Iterator[tuple[str, str]]:
    """(name, CIDR) of each running interface, in the order of getifaddrs(3): IPv4 addresses, then IPv6."""
    running = [nic for nic in interfaces if nic.up and nic.carrier is not False]
    if family != "AF_INET6":
        yield from ((nic.name, address) for nic in running for address in nic.ipv4)
    if family != "AF_INET":
        yield from (
            (nic.name, address) for nic in running for address in nic.ipv6 if not address.startswith("::1/")
        )


def _matching(running: Sequence[tuple[str, str]], names: str) -> list[str]:
    """The interfaces that the list `names` matches, each with its first address."""
    matches = matcher(names)
    first: dict[str, str] = {}
    for name, address in running:
        first.setdefault(name, address.split("/")[0])
    return [f"{name} {address}" for name, address in first.items() if matches(name, None)]


def _near(running: Sequence[tuple[str, str]], comm_id: str) -> list[str]:
    """The first interface in the subnet of `IP:PORT` or `[IPv6]:PORT`; host names are not resolved here."""
    text = comm_id.partition("]")[0].removeprefix("[") if comm_id.startswith("[") else comm_id.split(":")[0]
    try:
        rendezvous = ipaddress.ip_address(text)
    except ValueError:
        return []
    inside = (
        f"{name} {address.split('/')[0]}"
        for name, address in running
        if rendezvous in ipaddress.ip_network(address, strict=False)
    )
    return list(inside)[:1]


def _expect_hcas(
    rdma: RdmaFacts, environment: Mapping[str, str], version: tuple[int, ...] | None
) -> Iterator[str]:
    if _number(environment.get("NCCL_IB_DISABLE", "0")) != 0:
        return
    matches = matcher(environment.get("NCCL_IB_HCA", ""))
    for device in rdma.devices:
        if device.usable is False:
            continue
        for port in device.ports:
            if (
                port.active
                and port.link_layer in (INFINIBAND, ETHERNET)
                and matches(device.name, port.number)
            ):
                yield f"{device.name}:{port.number}{_gid(port, environment, version)}"


def _gid(port: Port, environment: Mapping[str, str], version: tuple[int, ...] | None) -> str:
    """` GID 3` on RoCE."""
    if port.link_layer == INFINIBAND:
        return ""
    finds = version is None or version >= FINDS_GIDS
    configured = _number(environment.get("NCCL_IB_GID_INDEX", "-1" if finds else "0"))
    if configured >= 0:
        return f" GID {configured}"
    try:
        return f" GID {index_nccl_takes(port.gids, environment.get('NCCL_IB_ADDR_RANGE', EVERYWHERE))}"
    except ValueError:
        return f" GID {index_nccl_takes(port.gids)}"  # NCCL ignores an invalid range


def _number(text: str) -> int:
    """The decimal number that strtoll(3) reads; 0 if there is none."""
    digits = re.match(r"\s*([+-]?[0-9]{1,18})", text)
    return int(digits[1]) if digits else 0
