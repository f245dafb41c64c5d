"""Send the output of a job, and every change of its state."""

from __future__ import annotations

import codecs
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from mnt.remote.common.files import strerror
from mnt.remote.common.forms import LOG_JSON
from mnt.remote.common.refusal import Refused
from mnt.remote.common.unlinked import open_regular_without_links
from mnt.remote.job.entry import require
from mnt.remote.job.files import FINAL_STATES, JobPaths, read_about
from mnt.remote.job.ranks import OpenLog
from mnt.remote.job.remains.readers import remains_of
from mnt.remote.job.spec import first_rank, rank_count

FRAME_BYTES = 256 * 1024
LOOK_EVERY = 0.1
_AT_ONCE = 4 * 1024 * 1024  # bytes of a stream between two looks at the state
_AFTER_STOP = 256 * 1024  # bytes of a stream that are still shown to who follows it when the job was stopped


def read_logs(args: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """See `mnt.tasks.job.read_logs`. Raises Refused."""
    paths, follow = JobPaths.of(args), args["follow"]
    entry = require(paths)
    emit({"state": entry})
    streams = _streams(paths, entry, args["rank"], args["offsets"])
    if args.get("tail") is not None:
        for stream in streams:
            if stream.name not in args["offsets"]:
                stream.skip_to_last_lines(int(args["tail"]))
    while True:
        # The state is read before the logs, so that everything written before the end is sent.
        now = require(paths)
        if now != entry:
            entry = now
            emit({"state": entry})
        last = not follow or entry["state"] in (*FINAL_STATES, "lost")
        if follow and entry["state"] == "stopped":
            for stream in streams:
                stream.skip_all_but(_AFTER_STOP, emit)
        behind = [stream.send(emit, final=last) for stream in streams]
        if last and not any(behind):
            return {"node": entry}
        if not any(behind):
            time.sleep(LOOK_EVERY)


def _streams(
    paths: JobPaths, entry: dict[str, Any], rank: int | None, offsets: dict[str, int]
) -> list[_Stream]:
    """The log files to send, each from its offset on. Raises Refused if the rank is not on this node."""
    if rank is None:
        return [_Stream("output", lambda: (paths.real(paths.output), None), offsets)]
    first, count = first_rank(entry), rank_count(entry)
    if not first <= rank < first + count:
        raise Refused(f"rank {rank} is not on {paths.host}: it has {first} to {first + count - 1}")

    remains, local_rank = remains_of(read_about(paths)), rank - first

    def stream(name: str) -> _Stream:
        def find() -> tuple[str | None, bool]:
            directory = paths.rank_logs()
            return remains.rank_log(directory, local_rank, name), directory != paths.real(paths.ranks)

        return _Stream(name, find, offsets)

    return [stream("stdout"), stream("stderr")]


class _Stream:
    """One log file, sent from an offset. It may not exist yet.

    Args:
        find_path: gives its path, and whether it is a rank's own (`OpenLog`), or None.
    """

    def __init__(
        self, name: str, find_path: Callable[[], tuple[str | None, bool | None]], offsets: dict[str, int]
    ) -> None:
        self.name = name
        self._find_path = find_path
        self._offset = int(offsets.get(name, 0))
        # Holds back the first bytes of a character until the others are there.
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def send(self, emit: Callable[[dict[str, Any]], None], *, final: bool) -> bool:
        """Send some of what is there, in frames of bounded size; whether there is more.

        Args:
            final: nothing more will be written: also send the bytes of a cut character.
        """
        with self._opened() as log:
            size = 0 if log is None else log.size
            stop = min(size, self._offset + _AT_ONCE)
            while log is not None and self._offset < stop:
                if self._offset < log.first:
                    self._skip_to(log.begin(), "not kept", emit)
                    continue
                data = log.read(self._offset, min(FRAME_BYTES, stop - self._offset))
                if not data and self._offset >= log.first:  # it was truncated in the meantime
                    size = self._offset
                    break
                self._offset += len(data)
                self._emit(emit, self._decoder.decode(data))
        if self._offset < size:
            return True
        if final:
            self._emit(emit, self._decoder.decode(b"", final=True))
        return False

    def skip_to_last_lines(self, count: int) -> None:
        """Begin with the last lines; the last one may lack its newline."""
        with self._opened() as log:
            if log is not None:
                self._offset = _start_of_lines(log, count) if count else log.size

    def skip_all_but(self, most: int, emit: Callable[[dict[str, Any]], None]) -> None:
        """If there is more than that to send, skip to the last line that begins in so many bytes; say so."""
        with self._opened() as log:
            if log is None or log.size - self._offset <= most:
                return
            newline = log.read(log.size - most, most).find(b"\n")
            begin = log.size - most + newline + 1
        self._skip_to(begin, "stopped", emit)

    def _skip_to(self, offset: int, why: str, emit: Callable[[dict[str, Any]], None]) -> None:
        emit({"skipped": offset - self._offset, "offset": offset, "stream": self.name, "why": why})
        self._decoder.reset()
        self._offset = offset

    @contextlib.contextmanager
    def _opened(self) -> Iterator[OpenLog | None]:
        """The log; None if there is none. Raises Refused."""
        path, file, of_rank = None, None, None
        try:
            for _ in range(2):  # a rank's log may move just then: see `JobPaths.rank_logs`
                path, of_rank = self._find_path()
                with contextlib.suppress(FileNotFoundError):
                    file = open_regular_without_links(path) if path else None
                if file is not None:
                    break
            if file is None:
                yield None
                return
            with file:
                yield OpenLog(file, of_rank=of_rank is not None, local=bool(of_rank))
        except OSError as error:
            raise Refused(f"{path} cannot be read: {strerror(error)}") from None

    def _emit(self, emit: Callable[[dict[str, Any]], None], text: str) -> None:
        if text:
            kept_back = len(self._decoder.getstate()[0])
            for part, offset in parts(text, self._offset - kept_back):
                emit({"data": part, "offset": offset, "stream": self.name})


def _start_of_lines(log: OpenLog, count: int) -> int:
    """The offset at which the last `count` lines begin, as far as they are there."""
    size = begin = log.size
    newlines = 0
    while begin > log.first:
        piece = min(FRAME_BYTES, begin - log.first)
        data = log.read(begin - piece, piece)
        at = len(data)
        while (at := data.rfind(b"\n", 0, at)) >= 0:
            newlines += begin - piece + at != size - 1  # the newline at the very end ends a line
            if newlines == count:
                return begin - piece + at + 1
        begin -= piece
    return max(begin, log.first)


def parts(text: str, end: int) -> Iterator[tuple[str, int]]:
    """The text in parts that have at most LOG_JSON bytes in JSON, each with the offset at which it ends."""
    if len(json.dumps(text)) <= LOG_JSON:
        yield text, end
        return
    first, second = text[: len(text) // 2], text[len(text) // 2 :]
    yield from parts(first, end - len(second.encode("utf-8", "surrogateescape")))
    yield from parts(second, end)
