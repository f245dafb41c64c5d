"""All backends. A new one is a module here and its line in BACKENDS; the first is the default.

The modules are loaded late, because the command line needs only the names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mnt.launch.backends.api import Backend

BACKENDS = {  # name -> module in this package, class there
    "ssh": "ssh.SshBackend",
    "local": "local.LocalBackend",
    "pdsh": "pdsh.PdshBackend",
    "mpi": "mpi.MpiBackend",
    "slurm": "slurm.SlurmBackend",
}
DEFAULT = next(iter(BACKENDS))


def backend_named(name: str) -> Backend:
    """The backend of that name; ssh if only a newer mnt knows the name."""
    module, _, kind = BACKENDS.get(name, BACKENDS["ssh"]).partition(".")
    backend: Backend = getattr(import_module(f"mnt.launch.backends.{module}"), kind)()
    return backend
