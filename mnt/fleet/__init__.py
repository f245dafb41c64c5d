"""Hosts over SSH: a connection to each, with every paramiko workaround, and tasks on many of them at once.

`login/` and `wire/` are what a connection is made of: fleet imports login, and login imports wire.
"""

from mnt.fleet.connection import HostConnection
from mnt.fleet.fleet import Fleet
from mnt.fleet.results import Outcome, Results, raise_output_error
from mnt.fleet.wire.timeouts import Timeouts

__all__ = ["Fleet", "HostConnection", "Outcome", "Results", "Timeouts", "raise_output_error"]
