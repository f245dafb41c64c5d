"""The lab's links, as batches for `ip` and `tc`. Pure.

Each lab has one network namespace, the switch, with two bridges: `mgmt` and `train`. Each host has a link to
both bridges, and one link connects `mgmt` with the machine. The bridges are not connected to each other.

Hosts of a large lab have permanent neighbour entries for each other's training NICs. The reason: the kernel
has one neighbour table for all namespaces, with 1024 entries (net.ipv4.neigh.default.gc_thresh3). 64 hosts
that all connect to each other would need four times as many. Permanent entries do not count.
"""

from __future__ import annotations

from collections.abc import Iterable

from mnt.lab.spec import MANAGEMENT_NIC, HostSpec, LabSpec

SWITCH = "switch"  # the name of the switch's namespace for `ip` in a host's namespace
_HEAD_PORT = "head"
_QUEUE = "50ms"  # longest wait in a shaped link's queue
_MIN_BURST = 128 * 1024  # bytes: two offloaded frames of 64 KiB; with less, tbf would split each frame
_BURST_SECONDS = 0.01
_LARGE = 16  # hosts


def bridges() -> str:
    """The switch: `ip` batch, to be run in its namespace."""
    return _lines(
        "link set lo up",
        *(f"link add {name} type bridge forward_delay 0 mcast_snooping 0" for name in ("mgmt", "train")),
        *(f"link set {name} up" for name in ("mgmt", "train")),
    )


def host_links(lab: LabSpec, host: HostSpec) -> str:
    """A host's NICs and addresses: `ip` batch, to be run in the host's namespace."""
    nics = (
        (MANAGEMENT_NIC, "", "m", host.management, lab.management),
        (host.nic, f"address {_mac(host)} ", "t", host.training, lab.training),
    )
    commands = ["link set lo up"]
    for nic, mac, port, address, network in nics:
        commands += [
            f"link add {nic} {mac}type veth peer name {port}{host.number} netns {SWITCH}",
            f"addr add {address}/{network.prefixlen} brd + dev {nic}",
            f"link set {nic} up",
        ]
    if len(lab.hosts) > _LARGE:
        commands += [
            f"neigh add {peer.training} lladdr {_mac(peer)} dev {host.nic} nud permanent"
            for peer in lab.hosts
            if peer != host
        ]
    return _lines(*commands)


def _mac(host: HostSpec) -> str:
    """The MAC address of its training NIC: locally administered, and unique within the lab."""
    return f"02:00:00:00:{host.number >> 8:02x}:{host.number & 255:02x}"


def head_link(lab: LabSpec, switch_pid: int) -> str:
    """The machine's link into the management network: `ip` batch, to be run in the machine's namespace."""
    address = f"{lab.head_address}/{lab.management.prefixlen}"
    return _lines(
        f"link add {lab.head_link} type veth peer name {_HEAD_PORT} netns {switch_pid}",
        f"addr add {address} brd + dev {lab.head_link}",
        f"link set {lab.head_link} up",
    )


def ports(hosts: Iterable[HostSpec]) -> str:
    """Connects all links to the bridges: `ip` batch, to be run in the switch's namespace."""
    commands = [f"link set {_HEAD_PORT} master mgmt up"]
    for host in hosts:
        commands += [
            f"link set m{host.number} master mgmt up",
            f"link set t{host.number} master train up",
        ]
    return _lines(*commands)


def host_shaping(host: HostSpec, rate: int) -> str:
    """The limit for what the host sends on its training link: `tc` batch for the host's namespace."""
    return _lines(_token_bucket(host.nic, rate))


def port_shaping(hosts: Iterable[HostSpec], rate: int) -> str:
    """The limit for what the hosts receive on their training links: `tc` batch for the switch's namespace."""
    return _lines(*(_token_bucket(f"t{host.number}", rate) for host in hosts))


def _token_bucket(device: str, rate: int) -> str:
    burst = max(_MIN_BURST, int(rate / 8 * _BURST_SECONDS))
    return f"qdisc add dev {device} root tbf rate {rate}bit burst {burst}b latency {_QUEUE}"


def _lines(*commands: str) -> str:
    return "".join(f"{command}\n" for command in commands)
