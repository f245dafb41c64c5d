"""The results of a command: on each host, and in total."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mnt.errors import HostError
from mnt.run.outputs import Capture, Stored

NO_EXIT_CODE = 255  # for a host that did not run the command to its end; the same code as ssh
INTERRUPTED = 130


@dataclass(frozen=True)
class HostRun:
    """One host: it has an `exit_code` or an `error`, or neither if the run ended before the host did."""

    host: str
    exit_code: int | None = None
    error: HostError | None = None
    seconds: float | None = None
    output: Capture | None = None  # None: not kept

    @property
    def status(self) -> str:
        """`ok`; `failed`: exit code not 0; `unreachable`; `error`: ended too early; `missing`: cancelled."""
        if self.error is not None:
            return "unreachable" if self.error.connection_lost else "error"
        if self.exit_code is None:
            return "missing"
        return "failed" if self.exit_code else "ok"

    def document(self) -> dict[str, Any]:
        result = {"status": self.status, "exit_code": self.exit_code, "seconds": self.seconds}
        result["error"] = None if self.error is None else f"{self.error.phase}: {self.error.reason}"
        if self.output is not None:
            result |= dict(_text("stdout", self.output.out)) | dict(_text("stderr", self.output.err))
        return result


@dataclass(frozen=True)
class RunSummary:
    """All hosts, in the order of the selection."""

    runs: Mapping[str, HostRun]
    interrupted: bool = False

    @property
    def failed(self) -> list[str]:
        """All hosts whose status is not `ok`."""
        return [host for host, run in self.runs.items() if run.status != "ok"]

    @property
    def missing(self) -> list[str]:
        return [host for host, run in self.runs.items() if run.status == "missing"]

    @property
    def exit_code(self) -> int:
        """130 if the run was interrupted, else the largest exit code of the hosts, at most 255."""
        if self.interrupted:
            return INTERRUPTED
        codes = [run.exit_code or 0 if run.error is None else NO_EXIT_CODE for run in self.runs.values()]
        return max(codes, default=0)

    def by_exit_code(self) -> dict[int, list[str]]:
        """The hosts by exit code, without 0, the smallest code first."""
        codes = sorted({run.exit_code for run in self.runs.values() if run.exit_code})
        return {code: [host for host, run in self.runs.items() if run.exit_code == code] for code in codes}

    @property
    def cut(self) -> list[str]:
        """The hosts of whose output only the beginning is kept."""
        return [host for host, run in self.runs.items() if run.output is not None and run.output.cut]

    def overview(self) -> dict[str, Any]:
        """The document without "hosts"."""
        return {"ok": not self.failed, "exit_code": self.exit_code, "failed": self.failed}

    def documents(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each host and its part of the document: with the output of 256 hosts, all would be too large."""
        return ((host, run.document()) for host, run in self.runs.items())

    def document(self) -> dict[str, Any]:
        return {**self.overview(), "hosts": dict(self.documents())}


def _text(name: str, stream: Stored) -> Iterator[tuple[str, str | int]]:
    """A stream as text; if it is not UTF-8, also its bytes; if only its beginning is kept, its whole size."""
    data = stream.read()
    yield name, data.decode("utf-8", "replace")
    try:
        data.decode()
    except UnicodeDecodeError:
        yield f"{name}_base64", base64.b64encode(data).decode()
    if stream.cut:
        yield f"{name}_size", stream.size
