"""The network environment of a node: variables, values and reasons. Pure.

The meaning of the variables is documented in NCCL's user guide and source, 2.30. `=` before a name makes NCCL
match the name exactly (without it `eth` also matches eth1, and `mlx5_1` also mlx5_10). gloo takes plain
names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mnt.inventory.model import Host, Rdma, Tuning
from mnt.network.hca import Hca
from mnt.network.nic import NicChoice

# Prefixes of the variables of the communication libraries.
_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "TP_", "UCX_")

# Key of `network.tuning` -> variable, and the only mode in which it has an effect; None: both modes.
# NCCL ignores a misspelt level, and reduces a value that is too high with a warning at most. So the values
# are checked when the inventory is read.
VARIABLES: dict[str, tuple[str, str | None]] = {
    "socket_nthreads": ("NCCL_SOCKET_NTHREADS", "tcp"),
    "nsocks_perthread": ("NCCL_NSOCKS_PERTHREAD", "tcp"),
    "buffer_size": ("NCCL_BUFFSIZE", None),
    "p2p_level": ("NCCL_P2P_LEVEL", None),
    "cross_nic": ("NCCL_CROSS_NIC", None),
    "topo_file": ("NCCL_TOPO_FILE", None),
    "debug": ("NCCL_DEBUG", None),
    "debug_subsys": ("NCCL_DEBUG_SUBSYS", None),
    "ib_timeout": ("NCCL_IB_TIMEOUT", "rdma"),
    "ib_retry_count": ("NCCL_IB_RETRY_CNT", "rdma"),
    "ib_traffic_class": ("NCCL_IB_TC", "rdma"),
    "ib_service_level": ("NCCL_IB_SL", "rdma"),
    "ib_qps_per_connection": ("NCCL_IB_QPS_PER_CONNECTION", "rdma"),
}


@dataclass(frozen=True)
class Variable:
    """A name, its value, and why it has that value."""

    name: str
    value: str
    reason: str


def environment(
    nic: NicChoice, host: Host, mode: str, reason: str, hcas: Sequence[Hca], gids: Sequence[Variable]
) -> Iterator[Variable]:
    """The variables that bind a node's collectives to sockets on its training NIC, or to its RDMA ports.

    In mode rdma, NCCL's bootstrap and gloo still use the NIC.

    Args:
        mode: tcp or rdma.
        reason: why the mode was chosen.
        hcas: the ports for training; empty if the host did not report its devices.
        gids: the variables of `mnt.network.roce` for this node; empty on InfiniBand.
    """
    chosen = f"{nic.interface.name}: {nic.reason}"
    yield Variable("NCCL_SOCKET_IFNAME", f"={nic.interface.name}", chosen)
    yield Variable("GLOO_SOCKET_IFNAME", nic.interface.name, chosen)
    if mode == "tcp":
        yield Variable("NCCL_IB_DISABLE", "1", f"{reason}: sockets only")
    else:
        yield from _devices(hcas, host.rdma)
        yield from gids
        if host.rdma.gdr_level is not None:
            yield Variable("NCCL_NET_GDR_LEVEL", host.rdma.gdr_level, "inventory: network.rdma.gdr_level")
    yield from _tuning(host.tuning, mode)


def with_inventory(variables: Iterable[Variable], env: Mapping[str, str]) -> list[Variable]:
    """The computed variables, overridden by the inventory's `env`, and the network variables that it adds."""
    computed = list(variables)
    names = {variable.name for variable in computed}
    return [
        *(_overridden(variable, env.get(variable.name, variable.value)) for variable in computed),
        *(
            Variable(name, value, "inventory: env")
            for name, value in env.items()
            if name not in names and name.startswith(_PREFIXES)
        ),
    ]


def _overridden(variable: Variable, value: str) -> Variable:
    if value == variable.value:
        return variable
    return Variable(variable.name, value, f"inventory: env; computed: {variable.value} ({variable.reason})")


def _devices(hcas: Sequence[Hca], rdma: Rdma) -> Iterator[Variable]:
    if hcas:
        labels = dict.fromkeys(hca.label for hca in hcas)
        reason = f"{hcas[0].port.kind}; {hcas[0].reason}"
        yield Variable("NCCL_IB_HCA", "=" + ",".join(labels), reason)
    elif rdma.devices:
        reason = "inventory: network.rdma.devices; the host did not report its devices"
        yield Variable("NCCL_IB_HCA", "=" + ",".join(rdma.devices), reason)


def _tuning(tuning: Tuning, mode: str) -> Iterator[Variable]:
    """The variables that the inventory sets, without those that have no effect in this mode (tcp or rdma)."""
    for key, (name, only) in VARIABLES.items():
        value = getattr(tuning, key)
        if value not in (None, ()) and only in (None, mode):
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            yield Variable(name, text, f"inventory: network.tuning.{key}")
