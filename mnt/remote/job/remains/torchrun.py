"""Which process of a node failed first, and why, from the files and output of torchrun and its ranks.

torchrun itself always exits with 1. The cause is in the summary that its agent prints (`ChildFailedError`),
in the `error.json` of ranks whose entry point is wrapped in torch's `record`, and in the ranks' stderr. The
formats are those of torch 2.13; tests/data/torchrun/ has recorded samples.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from mnt.remote.common.files import parse_json, whole_number
from mnt.remote.common.unlinked import open_regular_without_links
from mnt.remote.job.failures import (
    Failure,
    failure_of_program,
    how_it_ended,
    last_exception,
    make_failure,
    tail,
)
from mnt.remote.torchrun.rendezvous import ALONE

_WRONG = (ValueError, KeyError, TypeError, OverflowError, RecursionError)  # of an error.json that is none
_REPORT = re.compile(r"^\[\d+\]:$")
_FIELD = re.compile(r"^  (time|rank|exitcode)\s*: (.*)$")
_MOST_NAMES = 100  # in a directory, that are looked at
_RANK = re.compile(r"([0-9]{1,9}) \(local_rank: ([0-9]{1,9})\)")


@dataclass(frozen=True)
class Reported:
    """One process in the agent's summary."""

    rank: int
    local_rank: int
    code: int  # as Python's subprocess has it: -N for signal N
    time: float | None  # whole seconds, epoch


@dataclass(frozen=True)
class Written:
    """The text of a file, or its end, and when it was written, epoch seconds."""

    text: str
    time: float


@dataclass(frozen=True)
class RankFiles:
    """The files of one local rank; None if there is no such file."""

    error: Written | None = None  # error.json
    stderr: Written | None = None


# --- deciding: pure ----------------------------------------------------------------------------------------


def find_failure(
    output: str, ranks: dict[int, RankFiles], first_rank: int, code: int, before: float | None = None
) -> Failure:
    """See `mnt.remote.job.remains.readers.Remains.failure`; `ranks` are the files of the last attempt."""
    reports = {report.local_rank: report for report in parse_summary(output)}
    candidates = []
    for local_rank in sorted(set(reports) | set(ranks)):
        files = ranks.get(local_rank, RankFiles())
        error, stderr = _until(files.error, before), _until(files.stderr, before)
        failure = _of_rank(reports.get(local_rank), error, stderr, local_rank, first_rank)
        if failure is not None:
            candidates.append(failure)
    if not candidates:
        return failure_of_program(output, code)
    return min(candidates, key=lambda failure: (failure["victim"], failure["time"] or float("inf")))


def parse_summary(output: str) -> list[Reported]:
    """The processes in the summary that torchrun's agent prints when one fails, in its order."""
    _, found, summary = output.rpartition("ChildFailedError:")
    reports: list[Reported] = []
    fields: dict[str, str] = {}
    for line in summary.splitlines() if found else ():
        if _REPORT.match(line):
            fields = {}
        match = _FIELD.match(line)
        if match is None:
            continue
        fields[match[1]] = match[2]
        rank = _RANK.match(fields.get("rank", ""))
        if match[1] == "exitcode" and rank is not None:
            code = re.match(r"-?[0-9]{1,9}", match[2])
            reports.append(
                Reported(int(rank[1]), int(rank[2]), int(code[0]) if code else 1, _clock(fields.get("time")))
            )
    return reports


def error_time(text: str, modified: float) -> float:
    """When an error.json was written, epoch seconds.

    Its own timestamp is from this host's clock, but in whole seconds. The file's time is more precise, but
    from the clock of the file server: it counts only if the two agree.
    """
    try:
        timestamp = float(parse_json(text)["message"]["extraInfo"]["timestamp"])
    except _WRONG:
        return modified
    if not math.isfinite(timestamp):
        return modified
    return modified if timestamp <= modified < timestamp + 2 else timestamp


def _of_rank(
    report: Reported | None, error: Written | None, stderr: Written | None, local_rank: int, first_rank: int
) -> Failure | None:
    recorded = _parse_error_file(error.text) if error else None
    if report is None and recorded is None:
        return None
    output = stderr.text if stderr else ""
    exception = recorded or last_exception(output)
    # Without the agent's report: `record` raises the exception again, so Python exits with 1.
    code = 1 if report is None else report.code
    rank = first_rank + local_rank if report is None else report.rank
    if exception is not None and code > 0:
        message, traceback = exception
        source = error if recorded else stderr
        when = source.time if source else None
    else:
        message, traceback = how_it_ended(rank, code, output), None
        when = report.time if report else None
    return make_failure(
        message,
        code,
        traceback=traceback,
        stderr=output,
        rank=rank,
        local_rank=local_rank,
        time=when,
    )


def _until(file: Written | None, before: float | None) -> Written | None:
    return file if file is not None and (before is None or file.time < before) else None


def _parse_error_file(text: str) -> tuple[str, str] | None:
    """Message and call stack of an error.json, whose message is a mapping or (torch.multiprocessing) text."""
    try:
        message = parse_json(text)["message"]
    except _WRONG:
        return None
    if isinstance(message, str):
        return message.strip().rpartition("\n")[2], message
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack", "") if isinstance(extra, dict) else ""
    first_line = str(message.get("message", "")).strip().partition("\n")[0]
    return first_line, str(stack)


def _clock(text: str | None) -> float | None:
    try:
        return time.mktime(time.strptime(text or "", "%Y-%m-%d_%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


# --- reading -----------------------------------------------------------------------------------------------


class TorchrunRemains:
    """See `mnt.remote.job.remains.readers.Remains`."""

    def failure(
        self, output: str, ranks: str, first_rank: int, count: int, code: int, before: float | None = None
    ) -> Failure:
        return find_failure(output, read_ranks(ranks, count), first_rank, code, before)

    def alone(self, python: str) -> bool:
        return os.path.exists(os.path.join(python, ALONE))

    def started(self, ranks: str, count: int) -> int:
        # torchrun makes the files of a rank just before it starts the rank.
        logs = [self.rank_log(ranks, local_rank, "stdout") for local_rank in range(count)]
        return sum(log is not None and os.path.exists(log) for log in logs)

    def rank_log(self, ranks: str, local_rank: int, stream: str) -> str | None:
        attempt = last_attempt(ranks)
        return None if attempt is None else os.path.join(attempt, str(local_rank), f"{stream}.log")


def read_ranks(directory: str, count: int) -> dict[int, RankFiles]:
    """The files of so many local ranks of the last attempt, in torchrun's `--log-dir`; none behind a link."""
    attempt = last_attempt(directory)
    if attempt is None:
        return {}
    found = {rank: os.path.join(attempt, str(rank)) for rank in range(count)}
    return {rank: _read_rank(path) for rank, path in found.items() if os.path.isdir(path)}


def last_attempt(directory: str) -> str | None:
    """`<directory>/<run>/attempt_<N>` of the newest run and the largest N; None while there is none.

    Of very many runs or attempts, which torchrun has not made, only some are looked at, and no link.
    """
    attempts = []
    try:
        for run in _directories(directory):
            for entry in _directories(run.path):
                prefix, _, digits = entry.name.partition("_")
                number = whole_number(digits)
                if prefix == "attempt" and number is not None:
                    attempts.append((run.stat().st_mtime, number, entry.path))
    except OSError:
        return None
    return max(attempts)[2] if attempts else None


def _directories(path: str) -> Iterator[os.DirEntry[str]]:
    """Some of the directories in a directory. Raises OSError."""
    with os.scandir(path) as found:
        for entry in itertools.islice(found, _MOST_NAMES):
            if entry.is_dir(follow_symlinks=False):
                yield entry


def _read_rank(directory: str) -> RankFiles:
    error = _read(os.path.join(directory, "error.json"))
    if error is not None:
        error = Written(error.text, error_time(error.text, error.time))
    return RankFiles(error, _read(os.path.join(directory, "stderr.log")))


def _read(path: str) -> Written | None:
    try:
        with open_regular_without_links(path) as file:
            return Written(tail(file), os.fstat(file.fileno()).st_mtime)
    except OSError:
        return None
