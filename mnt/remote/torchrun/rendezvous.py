"""torchrun's static rendezvous, with a store that listens on the master address only.

torchrun's own handler (torch 2.13, `static_tcp_rendezvous.py`) creates a TCPStore, which listens on every
address of the host, and no option changes this. So this is a handler of its own, the backend `mnt`, for the
node that hosts the store. It is sent to the host, not imported by `mnt`, because it needs the host's torch.

It uses documented interfaces only: torchrun finds it by the entry point `torchrun.handlers`
(`torch.distributed.elastic.rendezvous.registry`, torch 2.5 and newer); `master_listen_fd` of TCPStore takes a
bound socket; and with `multi_tenant` a later TCPStore of the same process and port uses the same server.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from typing import Any

BACKEND = "mnt"  # as in `--rdzv-backend`

_TIMEOUT = 600  # seconds; that of torchrun's static rendezvous
_servers: list[Any] = []  # the TCPStores that keep the servers alive, until the process ends


def handler() -> Callable[[Any], Any]:
    """What the entry point names: it returns the function that makes a handler from RendezvousParameters."""
    _leave_python_path()
    return create


def create(parameters: Any) -> Any:
    """torchrun's static handler for node 0; its store listens on the address of the endpoint only.

    Args:
        parameters: RendezvousParameters; the endpoint is `ADDRESS:PORT`, with an IPv4 address of this host.

    Raises OSError, with address and port, if it cannot listen there.
    """
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

    class BoundRendezvous(StaticTCPRendezvous):  # type: ignore[misc,unused-ignore]
        def get_backend(self) -> str:
            return BACKEND

    address, _, text = parameters.endpoint.rpartition(":")
    port = int(text)
    _servers.append(
        TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=listen(address, port).detach(),  # the store closes it
        )
    )
    return BoundRendezvous(
        address,
        port,
        rank=0,
        world_size=parameters.max_nodes,
        run_id=parameters.run_id,
        timeout=parameters.get_as_int("timeout", _TIMEOUT),
    )


def listen(address: str, port: int) -> socket.socket:
    """A socket that listens there. Raises OSError, with address and port."""
    try:
        return socket.create_server((address, port), backlog=1024)  # the kernel reduces it to somaxconn
    except OSError as error:
        text = os.strerror(error.errno or 0)
        raise OSError(error.errno, f"the store cannot listen on {address}:{port}: {text}") from error


def _leave_python_path() -> None:
    """Take the directory of this file from PYTHONPATH again: it is there for torchrun, not for the ranks.

    torchrun itself does not look there again either: after some days without a change, a cleaner of /tmp may
    remove it, and then another user could make it.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != here]
    rest = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != here]
    if any(rest):
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
