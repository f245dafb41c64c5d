"""What became of a command on each host."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mnt.errors import HostError
from mnt.run.capture import Capture, Stored

_UNREACHED = ("resolve", "connect", "banner", "key exchange", "host key", "authentication", "channel")

NO_EXIT_CODE = 255  # of a host that could not run the command to its end; as ssh says it
INTERRUPTED = 130


@dataclass(frozen=True)
class HostRun:
    """One host: `exit_code`, or `error`, or neither where the run was over before the host was done."""

    host: str
    exit_code: int | None = None
    error: HostError | None = None
    seconds: float | None = None
    output: Capture | None = None  # None: nothing was kept

    @property
    def status(self) -> str:
        """`ok`; `failed`: another exit code than 0; `unreachable`; `error`: not run to its end; `missing`."""
        if self.error is not None:
            return "unreachable" if self.error.phase in _UNREACHED else "error"
        if self.exit_code is None:
            return "missing"
        return "failed" if self.exit_code else "ok"

    def document(self) -> dict[str, Any]:
        said = {"status": self.status, "exit_code": self.exit_code, "seconds": self.seconds}
        said["error"] = None if self.error is None else f"{self.error.phase}: {self.error.reason}"
        if self.output is not None:
            said |= dict(_text("stdout", self.output.out)) | dict(_text("stderr", self.output.err))
        return said


class RunReport:
    """All hosts, in the order of the selection."""

    def __init__(self, runs: Mapping[str, HostRun], *, interrupted: bool = False) -> None:
        self.runs = runs
        self._interrupted = interrupted

    @property
    def failed(self) -> list[str]:
        """The hosts on which it has to be done again: all that are not ok."""
        return [host for host, run in self.runs.items() if run.status != "ok"]

    @property
    def missing(self) -> list[str]:
        return [host for host, run in self.runs.items() if run.status == "missing"]

    @property
    def exit_code(self) -> int:
        """130 where it was interrupted, else the largest of the hosts'."""
        if self._interrupted:
            return INTERRUPTED
        return max((_code(run) for run in self.runs.values()), default=0)

    def by_exit_code(self) -> dict[int, list[str]]:
        """The hosts of each exit code that is not 0, the smallest first."""
        codes = sorted({run.exit_code for run in self.runs.values() if run.exit_code})
        return {code: [host for host, run in self.runs.items() if run.exit_code == code] for code in codes}

    def document(self) -> dict[str, Any]:
        return {
            "ok": not self.failed,
            "exit_code": self.exit_code,
            "failed": self.failed,
            "hosts": {host: run.document() for host, run in self.runs.items()},
        }


def _code(run: HostRun) -> int:
    if run.error is not None:
        return NO_EXIT_CODE
    return run.exit_code or 0


def _text(name: str, stream: Stored) -> Iterator[tuple[str, str]]:
    """A stream as text; where it is not UTF-8, the bytes too."""
    data = stream.read()
    yield name, data.decode("utf-8", "replace")
    try:
        data.decode()
    except UnicodeDecodeError:
        yield f"{name}_base64", base64.b64encode(data).decode()
