"""The readers of the engines' remains, each a module here and a line in READERS. A spec names its reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from mnt.remote.common.refusal import Refused
from mnt.remote.job.failures import Failure
from mnt.remote.job.remains.slots import LauncherRemains, SlotsRemains
from mnt.remote.job.remains.torchrun import TorchrunRemains


class Remains(Protocol):
    """Reads what the processes of a node leave in their output and in the directory of the ranks' logs."""

    def failure(
        self, output: str, ranks: str, first_rank: int, count: int, code: int, before: float | None = None
    ) -> Failure:
        """The first process of this node that failed; of several, one that is not another's victim.

        Args:
            output: the end of the engine's own output.
            ranks: the directory that `JobPaths.local_ranks` names, as `JobPaths.real` has it.
            first_rank: the global rank of local rank 0.
            count: the number of ranks on this node; what else is there is not read.
            code: the engine's exit code, -N for signal N.
            before: when the job was told to end; what the ranks wrote later does not count.
        """

    def alone(self, python: str) -> bool:
        """Whether it is known that no rank of the job has joined a process group.

        Args:
            python: the directory of `python_files`.
        """

    def started(self, ranks: str, count: int) -> int:
        """How many of the `count` ranks of this node have been started, in the last attempt.

        Args:
            ranks: the directory that `JobPaths.rank_logs` names.
        """

    def rank_log(self, ranks: str, local_rank: int, stream: str) -> str | None:
        """The file with a rank's `stdout` or `stderr`; None while it does not exist."""


READERS: dict[str, Remains] = {
    "torchrun": TorchrunRemains(),
    "slots": SlotsRemains(),
    "deepspeed": LauncherRemains(),
}


def remains_of(spec: Mapping[str, Any]) -> Remains:
    """The reader that a spec names; old specs name none, and have torchrun's. Raises Refused."""
    name = spec.get("remains") or "torchrun"
    if not isinstance(name, str) or name not in READERS:
        raise Refused(
            f"this mnt cannot read what {str(name)[:80]} leaves", "use the mnt that started the job"
        )
    return READERS[name]
