"""Output that is shown immediately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from mnt.ui import HostLines


class Live:
    """Both streams of all hosts, on two streams of this process."""

    def __init__(self, hosts: Sequence[str], stdout: TextIO, stderr: TextIO, *, prefix: bool) -> None:
        self._out = HostLines(hosts, stdout, prefix=prefix)
        self._err = HostLines(hosts, stderr, prefix=prefix)

    def sink(self, host: str) -> HostLive:
        return HostLive(host, self._out, self._err)

    def close(self) -> None:
        """Show incomplete last lines."""
        self._out.close()
        self._err.close()


@dataclass(frozen=True)
class HostLive:
    """A sink: one host's output."""

    host: str
    out: HostLines
    err: HostLines

    def stdout(self, data: bytes) -> None:
        self.out.feed(self.host, data)

    def stderr(self, data: bytes) -> None:
        self.err.feed(self.host, data)
