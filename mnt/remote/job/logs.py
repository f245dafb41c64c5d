"""Send the output of a job, and every change of its state."""

from __future__ import annotations

import codecs
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from mnt.remote.common.files import open_regular, strerror
from mnt.remote.common.forms import LOG_JSON
from mnt.remote.common.refusal import Refused
from mnt.remote.job.entry import require
from mnt.remote.job.files import FINAL_STATES, JobPaths, read_about
from mnt.remote.job.remains.readers import remains_of
from mnt.remote.job.spec import first_rank, rank_count

FRAME_BYTES = 256 * 1024
LOOK_EVERY = 0.1


def read_logs(args: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """See `mnt.tasks.job.read_logs`. Raises Refused."""
    paths = JobPaths(args["jobs_dir"], args["job"], args["host"])
    entry = require(paths)
    emit({"state": entry})
    streams = _streams(paths, entry, args["rank"], int(args["offset"]))
    while True:
        # The state is read before the logs, so that everything written before the end is sent.
        now = require(paths)
        if now != entry:
            entry = now
            emit({"state": entry})
        last = not args["follow"] or entry["state"] in (*FINAL_STATES, "lost")
        for stream in streams:
            stream.send(emit, final=last)
        if last:
            return {"node": entry}
        time.sleep(LOOK_EVERY)


def _streams(paths: JobPaths, entry: dict[str, Any], rank: int | None, offset: int) -> list[_Stream]:
    """The log files to send. Raises Refused if the rank is not on this node."""
    if rank is None:
        return [_Stream("output", lambda: paths.output, offset)]
    first, count = first_rank(entry), rank_count(entry)
    if not first <= rank < first + count:
        raise Refused(f"rank {rank} is not on {paths.host}: it has {first} to {first + count - 1}")

    remains, local_rank = remains_of(read_about(paths)), rank - first

    def stream(name: str) -> _Stream:
        return _Stream(name, lambda: remains.rank_log(paths.ranks, local_rank, name))

    return [stream("stdout"), stream("stderr")]


class _Stream:
    """One log file, sent from an offset. It may not exist yet."""

    def __init__(self, name: str, find_path: Callable[[], str | None], offset: int = 0) -> None:
        self._name = name
        self._find_path = find_path
        self._offset = offset
        # Holds back the first bytes of a character until the others are there.
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def send(self, emit: Callable[[dict[str, Any]], None], *, final: bool) -> None:
        """Send what is there, in frames of bounded size; `final`: also the bytes of a cut character."""
        path = self._find_path()
        if path is None:
            return
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(self._offset)
                while self._offset < size:
                    data = file.read(min(FRAME_BYTES, size - self._offset))
                    if not data:  # it was truncated in the meantime
                        break
                    self._offset += len(data)
                    self._emit(emit, self._decoder.decode(data))
        except FileNotFoundError:
            return
        except OSError as error:
            raise Refused(f"{path} cannot be read: {strerror(error)}") from None
        if final:
            self._emit(emit, self._decoder.decode(b"", final=True))

    def _emit(self, emit: Callable[[dict[str, Any]], None], text: str) -> None:
        if text:
            kept_back = len(self._decoder.getstate()[0])
            for part, offset in parts(text, self._offset - kept_back):
                emit({"data": part, "offset": offset, "stream": self._name})


def parts(text: str, end: int) -> Iterator[tuple[str, int]]:
    """The text in parts that have at most LOG_JSON bytes in JSON, each with the offset at which it ends."""
    if len(json.dumps(text)) <= LOG_JSON:
        yield text, end
        return
    first, second = text[: len(text) // 2], text[len(text) // 2 :]
    yield from parts(first, end - len(second.encode("utf-8", "surrogateescape")))
    yield from parts(second, end)
