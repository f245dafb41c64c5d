"""A node's state, kept and written by its supervisor. Runs on a host: standard library only, Python 3.8."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any, Callable

from mnt.remote.common.refusal import Refused
from mnt.remote.job.files import FORMAT, JobPaths
from mnt.remote.job.procs import Process, boot_id, identify

_SAVE_FOR = 3600.0  # seconds after the end to try to write the final state, if the disk is full
_SAVE_FOR_GONE = 30.0  # the same if the job's directory is gone
_SAVE_EVERY = 1.0


class NodeState:
    """The content of state.json.

    While that file cannot be written, as on a full disk, the job goes on, and the state is in the node-local
    directory (`mnt.remote.job.files.read_state`).
    """

    def __init__(self, paths: JobPaths, supervisor: Process) -> None:
        self._paths = paths
        self._dirty = True
        self._values: dict[str, Any] = {
            "format": FORMAT,
            "state": "starting",
            "exit_code": None,
            "signal": None,
            "failure": None,
            "reason": None,
            "supervisor": {**identify(supervisor), "boot_id": boot_id()},
            "started": time.time(),
            "ended": None,
            "listening": False,
            "peer": None,
            "alone": False,
            "rankless": False,
            "killed": 0,
            "left": [],
        }

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def note(self, **changes: Any) -> None:
        """Change values; `save` writes them."""
        if any(self._values[name] != value for name, value in changes.items()):
            self._values.update(changes)
            self._dirty = True

    def save(self) -> None:
        """Write the changes, if there are any. If that fails, the next call tries again."""
        if not self._dirty:
            return
        try:
            self._paths.write(self._paths.state, self._values)
        except OSError as error:
            log(f"cannot write {self._paths.state}: {error}")
            with contextlib.suppress(OSError):
                self._paths.write(self._paths.unsaved_state, self._values)
        else:
            self._dirty = False
            with contextlib.suppress(OSError, Refused):  # usually there is none
                if self._paths.has_local():
                    os.unlink(self._paths.unsaved_state)

    def leave(self, hurried: Callable[[], bool]) -> None:
        """Write the final state, then remove the node-local directory.

        If the state cannot be written in time, or before `hurried`, it stays in that directory.
        """
        ended = time.monotonic()
        self.save()
        while self._dirty and not hurried():
            exists = os.path.isdir(self._paths.directory)
            if time.monotonic() - ended > (_SAVE_FOR if exists else _SAVE_FOR_GONE):
                break
            time.sleep(_SAVE_EVERY)
            self.save()
        if not self._dirty or not os.path.isdir(self._paths.directory):
            with contextlib.suppress(Refused):
                self._paths.remove_local()


def log(message: str) -> None:
    """Write to supervisor.log. The disk may be full; that must not end the job."""
    with contextlib.suppress(OSError):
        print(time.strftime("%Y-%m-%d %H:%M:%S"), message, file=sys.stderr, flush=True)
