"""Which process of a node failed first, and why, from what `mnt.remote.slots.slots` and its ranks leave."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mnt.remote.common.files import parse_json
from mnt.remote.common.forms import CALENDAR_END
from mnt.remote.common.unlinked import open_regular_without_links
from mnt.remote.job.failures import (
    Failure,
    failure_of_program,
    how_it_ended,
    last_exception,
    make_failure,
    tail,
)
from mnt.remote.slots.slots import ENDED, rank_logs

_MOST_RANKS = 1 << 20
_CODES = range(-128, 256)


@dataclass(frozen=True)
class Ended:
    """A rank that has failed by itself."""

    local_rank: int | None  # None: it is not known which
    code: int  # as Python's subprocess has it: -N for signal N
    time: float  # epoch seconds
    output: str  # the end of what it printed, of stderr if that is kept apart


# --- deciding: pure ----------------------------------------------------------------------------------------


def find_failure(
    output: str, ended: Iterable[Ended], first_rank: int, code: int, before: float | None = None
) -> Failure:
    """See `mnt.remote.job.remains.readers.Remains.failure`."""
    failures = [_of_rank(each, first_rank) for each in ended if before is None or each.time < before]
    if not failures:
        return failure_of_program(output, code)
    return min(failures, key=lambda failure: (failure["victim"], failure["time"] or float("inf")))


def _of_rank(ended: Ended, first_rank: int) -> Failure:
    rank = None if ended.local_rank is None else first_rank + ended.local_rank
    exception = last_exception(ended.output) if ended.code > 0 else None
    message, traceback = exception or (_sentence(rank, ended), None)
    return make_failure(
        message,
        ended.code,
        traceback=traceback,
        stderr=ended.output,
        rank=rank,
        local_rank=ended.local_rank,
        time=ended.time,
    )


def _sentence(rank: int | None, ended: Ended) -> str:
    if rank is None:
        return how_it_ended(0, ended.code, "").replace("rank 0", "a rank of this node")
    return how_it_ended(rank, ended.code, ended.output)


def parse_ended(text: str) -> list[tuple[int | None, int, float]]:
    """(local rank, code, time) of each rank in the file ENDED; what is no such list counts as empty."""
    try:
        listed = parse_json(text)
    except (ValueError, RecursionError):
        return []
    found = [_parse(each) for each in listed] if isinstance(listed, list) else []
    return [each for each in found if each is not None]


def _parse(document: Any) -> tuple[int | None, int, float] | None:
    if not isinstance(document, dict):
        return None
    rank: Any = document.get("local_rank")
    code: Any = document.get("code")
    time: Any = document.get("time")
    of_rank = rank is None or (type(rank) is int and 0 <= rank < _MOST_RANKS)
    at = type(time) in (int, float) and 0 <= time < CALENDAR_END
    return (rank, code, float(time)) if of_rank and at and type(code) is int and code in _CODES else None


# --- reading -----------------------------------------------------------------------------------------------


class SlotsRemains:
    """See `mnt.remote.job.remains.readers.Remains`: of the mode `command`."""

    def failure(
        self, output: str, ranks: str, first_rank: int, count: int, code: int, before: float | None = None
    ) -> Failure:
        told = parse_ended(_end_of(os.path.join(ranks, ENDED)))
        listed = [each for each in told if each[0] is None or each[0] < count]
        ended = [Ended(rank, code, time, self._output(ranks, rank)) for rank, code, time in listed]
        return find_failure(output, ended, first_rank, code, before)

    def alone(self, python: str) -> bool:
        return False  # these programs need no store of ours: nothing is known

    def started(self, ranks: str, count: int) -> int:
        logs = [self.rank_log(ranks, local_rank, "stdout") for local_rank in range(count)]
        return sum(log is not None and os.path.exists(log) for log in logs)

    def rank_log(self, ranks: str, local_rank: int, stream: str) -> str | None:
        return os.path.join(ranks, str(local_rank), f"{stream}.log")

    def _output(self, ranks: str, local_rank: int | None) -> str:
        path = None if local_rank is None else self.rank_log(ranks, local_rank, "stderr")
        return _end_of(path) if path else ""


class LauncherRemains(SlotsRemains):
    """The same of the mode `deepspeed`: DeepSpeed's launcher puts both streams of a rank into one log."""

    def rank_log(self, ranks: str, local_rank: int, stream: str) -> str | None:
        logs = rank_logs(ranks) if stream == "stdout" else []
        return logs[local_rank] if local_rank < len(logs) else None

    def _output(self, ranks: str, local_rank: int | None) -> str:
        path = None if local_rank is None else self.rank_log(ranks, local_rank, "stdout")
        return _end_of(path) if path else ""


def _end_of(path: str) -> str:
    """The end of a file, not behind a link; empty if there is none."""
    try:
        with open_regular_without_links(path) as file:
            return tail(file)
    except OSError:
        return ""
