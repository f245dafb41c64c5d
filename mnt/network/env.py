"""The network environment of a node: which variables, which values, and why. Pure.

Meanings of the variables: NCCL 2.30 user guide and source. `=` before a name makes NCCL match it exactly
(`eth` alone would match eth1 too, and `mlx5_1` mlx5_10); gloo takes plain names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mnt.inventory.model import Rdma, Tuning
from mnt.network.hca import Hca
from mnt.network.nic import NicChoice
from mnt.network.tuning import tuning_variables
from mnt.network.variable import Variable

# Variables of the libraries that carry a job's traffic.
_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "TP_", "UCX_")


def tcp_environment(nic: NicChoice, tuning: Tuning, why: str) -> list[Variable]:
    """What binds a node's collectives to the sockets of its training NIC.

    Args:
        why: why the mode is tcp.
    """
    return [
        *_interface(nic),
        Variable("NCCL_IB_DISABLE", "1", f"{why}: sockets only"),
        *tuning_variables(tuning, "tcp"),
    ]


def rdma_environment(
    nic: NicChoice, hcas: Sequence[Hca], rdma: Rdma, tuning: Tuning, gids: Sequence[Variable]
) -> list[Variable]:
    """What binds a node's collectives to its RDMA ports; NCCL's first contact goes over the NIC's sockets.

    Args:
        hcas: the ports that train; empty where the host did not say what it has.
        gids: what `mnt.network.roce` decided for this node; empty on InfiniBand.
    """
    return [*_interface(nic), *_devices(hcas, rdma), *gids, *_gdr(rdma), *tuning_variables(tuning, "rdma")]


def with_inventory(variables: Iterable[Variable], env: Mapping[str, str]) -> list[Variable]:
    """What a job gets: the computed variables under the inventory's `env`, and what that says of networks."""
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
    return Variable(variable.name, value, f"inventory: env; computed was {variable.value}: {variable.reason}")


def _interface(nic: NicChoice) -> Iterator[Variable]:
    why = f"{nic.interface.name}: {nic.reason}"
    yield Variable("NCCL_SOCKET_IFNAME", f"={nic.interface.name}", why)
    yield Variable("GLOO_SOCKET_IFNAME", nic.interface.name, why)


def _devices(hcas: Sequence[Hca], rdma: Rdma) -> Iterator[Variable]:
    if hcas:
        labels = dict.fromkeys(hca.label for hca in hcas)
        kind = "InfiniBand" if hcas[0].gid is None else "RoCE"
        yield Variable("NCCL_IB_HCA", "=" + ",".join(labels), f"{kind}; {hcas[0].reason}")
    elif rdma.devices:
        reason = "inventory: network.rdma.devices; the host did not say what it has"
        yield Variable("NCCL_IB_HCA", "=" + ",".join(rdma.devices), reason)


def _gdr(rdma: Rdma) -> Iterator[Variable]:
    if rdma.gdr_level is not None:
        yield Variable("NCCL_NET_GDR_LEVEL", rdma.gdr_level, "inventory: network.rdma.gdr_level")
