"""The tuning variables that the inventory can set for NCCL. Pure.

NCCL ignores a misspelt level, and reduces a value that is too high with a warning at most. So the values are
checked when the inventory is read. Names, values and limits: user guide and source of NCCL 2.30.
"""

from __future__ import annotations

from collections.abc import Iterator

from mnt.inventory.model import Tuning
from mnt.network.variable import Variable

# Key of `network.tuning` -> variable, and the only mode in which it has an effect; None: both modes.
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


def tuning_variables(tuning: Tuning, mode: str) -> Iterator[Variable]:
    """The variables that the inventory sets, without those that have no effect in this mode (tcp or rdma)."""
    for key, (name, only) in VARIABLES.items():
        value = getattr(tuning, key)
        if value not in (None, ()) and only in (None, mode):
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            yield Variable(name, text, f"inventory: network.tuning.{key}")
