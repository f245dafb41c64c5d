"""Hosts over SSH: Fabric's connections with every paramiko workaround, and tasks on many of them at once."""

from mnt.fleet.connection import HostConnection
from mnt.fleet.fleet import Fleet
from mnt.fleet.results import Outcome, Results, raise_broken_pipe
from mnt.fleet.wire.channel import Completed, RemoteCommand, execute
from mnt.fleet.wire.timeouts import Timeouts

__all__ = [
    "Completed",
    "Fleet",
    "HostConnection",
    "Outcome",
    "RemoteCommand",
    "Results",
    "Timeouts",
    "execute",
    "raise_broken_pipe",
]
