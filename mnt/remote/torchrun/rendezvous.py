"""torchrun's static rendezvous, with a store that listens on the master address only.

torchrun's own handler (torch 2.13, `static_tcp_rendezvous.py`) creates a TCPStore, which listens on every
address of the host, and no option changes this. So this is a handler of its own, the backend `mnt`. It is
sent to the hosts, not imported by `mnt`, because it needs the host's torch.

The other nodes may start at the same time as node 0, which hosts the store: they wait here until it listens,
with torch imported. torch's own client of the store waits longer and longer between two attempts.

When torchrun has ended on node 0, the store shows whether any rank has joined a process group: if none has,
the handler leaves the file ALONE beside this one, for the supervisor.

It uses documented interfaces only: torchrun finds it by the entry point `torchrun.handlers`
(`torch.distributed.elastic.rendezvous.registry`, torch 2.5 and newer); `master_listen_fd` of TCPStore takes a
bound socket; with `multi_tenant` a later TCPStore of the same process and port uses the same server; and
`list_keys` (newer than torch 2.9) has the keys of all clients.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

BACKEND = "mnt"  # as in `--rdzv-backend`
ALONE = "alone"  # this file's presence says that no rank has joined a process group

# What `init_process_group` puts before the keys of gloo and NCCL (torch 2.11 and 2.13, distributed_c10d.py).
_GROUP = "default_pg/"

_TIMEOUT = 600  # seconds; that of torchrun's static rendezvous
_ATTEMPT = 5.0  # seconds for an attempt to connect
_BETWEEN = 0.02
_servers: list[Any] = []  # the TCPStores that keep the servers alive, until the process ends


def handler() -> Callable[[Any], Any]:
    """What the entry point names: it returns the function that makes a handler from RendezvousParameters."""
    _leave_python_path()
    return create


def create(parameters: Any) -> Any:
    """torchrun's static handler; on node 0 its store listens on the address of the endpoint only.

    Args:
        parameters: RendezvousParameters; the endpoint is `ADDRESS:PORT`, with an IPv4 address of node 0, and
            `rank` the node's rank.

    Raises OSError, with address and port, if node 0 cannot listen there; TimeoutError if it does not listen.
    """
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

    class Rendezvous(StaticTCPRendezvous):  # type: ignore[misc,unused-ignore]
        def get_backend(self) -> str:
            return BACKEND

        def shutdown(self) -> bool:
            if _servers:
                _tell_if_alone(_servers[-1])
            return bool(super().shutdown())

    address, _, text = parameters.endpoint.rpartition(":")
    port, rank = int(text), parameters.get_as_int("rank", 0)
    timeout = parameters.get_as_int("timeout", _TIMEOUT)
    if rank == 0:
        _servers.append(_serve(address, port))
    else:
        await_listener(address, port, timeout)
    return Rendezvous(
        address,
        port,
        rank=rank,
        world_size=parameters.max_nodes,
        run_id=parameters.run_id,
        timeout=timeout,
    )


def _serve(address: str, port: int) -> Any:
    """A TCPStore that listens on this address only."""
    from torch.distributed import TCPStore

    return TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listen(address, port).detach(),  # the store closes it
    )


def await_listener(address: str, port: int, timeout: float) -> None:
    """Wait until somebody accepts a connection there, `timeout` seconds at most. Raises TimeoutError."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((address, port), timeout=_ATTEMPT).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                message = f"the store does not listen on {address}:{port} after {timeout:g} s: {error}"
                raise TimeoutError(message) from error
        time.sleep(_BETWEEN)


def listen(address: str, port: int) -> socket.socket:
    """A socket that listens there. Raises OSError, with address and port."""
    try:
        return socket.create_server((address, port), backlog=1024)  # the kernel reduces it to somaxconn
    except OSError as error:
        text = os.strerror(error.errno or 0)
        raise OSError(error.errno, f"the store cannot listen on {address}:{port}: {text}") from error


def _tell_if_alone(store: Any) -> None:
    """Write ALONE if no rank has joined a group. Nothing is known with a torch without `list_keys`."""
    if hasattr(store, "list_keys") and not joined(store.list_keys()):
        with contextlib.suppress(OSError), open(os.path.join(_here(), ALONE), "w", encoding="ascii"):
            pass


def joined(keys: Iterable[str]) -> bool:
    """Whether these keys of the store, with the agents' own, show that a rank has joined a process group."""
    return any(key.startswith(_GROUP) for key in keys)


def _here() -> str:
    return os.path.dirname(os.path.abspath(__file__))


def _leave_python_path() -> None:
    """Take the directory of this file from PYTHONPATH again: it is there for torchrun, not for the ranks.

    torchrun itself does not look there again either: after some days without a change, a cleaner of /tmp may
    remove it, and then another user could make it.
    """
    here = _here()
    sys.path[:] = [path for path in sys.path if path != here]
    rest = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != here]
    if any(rest):
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
