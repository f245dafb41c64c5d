"""Start a node's ranks without torchrun, pass on what they print, and note which of them failed.

    python -m mnt_slots command --ranks=DIR .. -- PROGRAM [ARG]..       PROGRAM once for each slot of the node
    python -m mnt_slots deepspeed --ranks=DIR .. -- [ARG]..             `deepspeed.launcher.launch` with ARGs

It is sent to the hosts as a file of its own, and runs in the environment of the job. Each line that a rank
prints goes to our standard output, after `[rankN] ` as from torchrun. Below DIR are the ranks' own logs, with
the bytes as they were written, and ENDED, with the ranks that failed by themselves. The exit code is that of
the first of these, 128+N for a signal.

When a rank fails, all others get TERM, and KILL after `--grace` seconds (DeepSpeed's launcher does this by
itself, after 30). Whoever ends a job signals all its processes, the ranks too. So we pass TERM on only if it
seems to be for us alone: our parent is gone or unknown (in a container), or the ranks live on.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # nothing of the code tree, which is on the path of `-m`, takes a library's place
    _own = ["", os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:] = [path for path in sys.path if path not in _own]

import contextlib
import json
import re
import selectors
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, Sequence

if TYPE_CHECKING:
    import argparse

ENDED = "ended.json"  # [{"local_rank", "code" (-N for signal N), "time" (epoch seconds)}, ..]
STREAMS = ("stdout", "stderr")
_RANK_LOG = re.compile(r"\A[0-9]*_rank([0-9]{1,9})\.log")  # DeepSpeed 0.19: launch.py

_PIECE = 65536  # bytes that are read at once, and of the longest line
_LOOK_EVERY = 0.1  # seconds between two looks at what has no descriptor to wait for
_ALONE = 2.0  # seconds, beyond the grace, after which a TERM was for us alone
_SPAWNED = re.compile(rb"process ([0-9]{1,9}) spawned with command")  # DeepSpeed 0.19: launch.py
_RETURNED = re.compile(rb"exits with return code = (-?[0-9]{1,9})")  # the same


# --- deciding: pure ----------------------------------------------------------------------------------------


def variables(options: argparse.Namespace, local_rank: int, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of one rank, which torchrun would set, and those of `--names`.

    `pet` has the names that torchrun reads as its options (`PET_NNODES`; as Kubeflow sets them), `ompi` those
    of Open MPI, whose NODE_RANK counts the processes of one node, not the nodes.
    """
    rank, here = str(options.first_rank + local_rank), str(local_rank)
    found = {
        "RANK": rank,
        "LOCAL_RANK": here,
        "WORLD_SIZE": str(options.world_size),
        "LOCAL_WORLD_SIZE": str(options.nproc),
        "NODE_RANK": str(options.node_rank),
        "GROUP_RANK": str(options.node_rank),
    }
    names = options.names.split(",")
    if "pet" in names:
        found.update(
            PET_NNODES=str(options.nodes),
            PET_NPROC_PER_NODE=str(options.nproc),
            PET_NODE_RANK=str(options.node_rank),
        )
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if name in environment:
                found[f"PET_{name}"] = environment[name]
    if "ompi" in names:
        found.update(
            OMPI_COMM_WORLD_RANK=rank,
            OMPI_COMM_WORLD_SIZE=str(options.world_size),
            OMPI_COMM_WORLD_LOCAL_RANK=here,
            OMPI_COMM_WORLD_LOCAL_SIZE=str(options.nproc),
            OMPI_COMM_WORLD_NODE_RANK=here,
        )
    return found


def exit_code(code: int) -> int:
    """The exit code as in a shell, from that of Python's subprocess."""
    return code if code >= 0 else 128 - code


def told(code: int) -> str:
    """How a process has ended, in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


class Lines:
    """Cuts what a rank prints into lines; a carriage return ends one, too, as with torchrun."""

    def __init__(self) -> None:
        self._rest = b""
        self._after_return = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        if self._after_return and data[:1] == b"\n":
            data = data[1:]
        if data:
            self._after_return = data[-1:] == b"\r"
        text = self._rest + data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = text.split(b"\n")
        if len(self._rest) >= _PIECE:
            lines, self._rest = [*lines, self._rest], b""
        return lines

    def rest(self) -> list[bytes]:
        """The last line, if it has no end."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


# --- output ------------------------------------------------------------------------------------------------


def write(descriptor: int, data: bytes) -> None:
    """Write all of it, unless that is impossible: a full disk does not end the job."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        pass


def say(text: str) -> None:
    """Print words of ours, with a prefix like a rank's."""
    write(1, f"[mnt] {text}\n".encode("utf-8", "surrogateescape"))


class Printer:
    """Prints the lines of one stream of a rank, each after the rank's number."""

    def __init__(self, rank: int) -> None:
        self._prefix = f"[rank{rank}] ".encode()
        self._lines = Lines()

    def feed(self, data: bytes) -> None:
        self._print(self._lines.feed(data))

    def close(self) -> None:
        self._print(self._lines.rest())

    def _print(self, lines: list[bytes]) -> None:
        if lines:
            write(1, b"".join(self._prefix + line + b"\n" for line in lines))


class Pipe:
    """One stream of a rank, through a pipe: into its own log, and to the printer."""

    def __init__(self, reading: int, printer: Printer, log: int | None) -> None:
        self.fileno, self._printer, self._log = reading, printer, log
        os.set_blocking(reading, False)

    def read(self) -> bool:
        """Take what is there, up to some size. False: nothing more will come."""
        for _ in range(16):
            try:
                data = os.read(self.fileno, _PIECE)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            if self._log is not None:
                write(self._log, data)
            self._printer.feed(data)
        return True

    def close(self) -> None:
        self._printer.close()


class Tail:
    """The log of a rank that somebody else writes, read as it grows."""

    def __init__(self, path: str, printer: Printer) -> None:
        self._path, self._printer = path, printer
        self._file: Any = None

    def read(self) -> None:
        try:
            if self._file is None:
                self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115 - until the rank has ended
            while True:
                data = self._file.read(_PIECE)
                if not data:
                    return
                self._printer.feed(data)
        except OSError:
            return

    def close(self) -> None:
        self.read()
        self._printer.close()


def rank_logs(directory: str) -> list[str]:
    """The logs that DeepSpeed's launcher has made for the ranks of this node, in their order."""
    try:
        found = [
            (match, name) for name in os.listdir(directory) for match in [_RANK_LOG.fullmatch(name)] if match
        ]
    except OSError:
        return []
    return [
        os.path.join(directory, name) for _, name in sorted((int(match[1]), name) for match, name in found)
    ]


def _open_log(directory: str, name: str) -> int | None:
    """A new file; None if it cannot be made: the job goes on without it."""
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(os.path.join(directory, name), flags, 0o600)
    except OSError:
        return None


# --- the node's ranks --------------------------------------------------------------------------------------


class Node:
    """The loop that both modes share: what happened, and when to end."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.selector = selectors.DefaultSelector()
        self.failed: list[dict[str, Any]] = []  # as in ENDED
        self.kill_at: float | None = None  # monotonic; the ranks are being ended
        self._parent = os.getppid()
        self._term: float | None = None  # since when
        reading, writing = os.pipe()
        for descriptor in (reading, writing):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self.selector.register(reading, selectors.EVENT_READ, lambda: os.read(reading, 4096))
        signal.signal(signal.SIGTERM, self._take_term)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)

    def _take_term(self, signum: int, frame: Any) -> None:
        self._term = self._term or time.monotonic()

    @property
    def told_to_end(self) -> bool:
        return self._term is not None

    @property
    def ends(self) -> bool:
        return self.told_to_end or self.kill_at is not None

    def note_failure(self, local_rank: int | None, code: int, *, first: bool = False) -> None:
        """A rank has failed; it counts if that is not because we, or somebody else, end the job.

        Args:
            first: it has failed before those that are noted already.
        """
        if code == 0 or self.ends:
            return
        now = self.failed[0]["time"] if first and self.failed else time.time()
        noted = {"local_rank": local_rank, "code": code, "time": now}
        self.failed.insert(0 if first else len(self.failed), noted)
        path = os.path.join(self.options.ranks, ENDED)
        try:
            os.makedirs(self.options.ranks, 0o700, exist_ok=True)
            with open(path + ".new", "w", encoding="ascii") as file:
                json.dump(self.failed, file)
            os.replace(path + ".new", path)
        except OSError:
            pass  # our exit code has the rank's

    def wait(self, timeout: float) -> None:
        for key, _ in self.selector.select(timeout):
            key.data()

    def must_pass_term_on(self, now: float) -> bool:
        """Whether it has to be us who ends the ranks."""
        if self._term is None or self.kill_at is not None:
            return False
        by_supervisor = self._parent > 1 and os.getppid() == self._parent
        return not by_supervisor or now - self._term > self.options.grace + _ALONE

    def code(self, otherwise: int) -> int:
        """The exit code of the node."""
        if self.failed:
            return exit_code(self.failed[0]["code"])
        return 128 + signal.SIGTERM if self.told_to_end else otherwise


class Slots(Node):
    """The program, once for each slot; each is the leader of its own session."""

    def run(self, words: Sequence[str]) -> int:
        environment = without_us(os.environ)
        pipes: list[Pipe] = []
        running: dict[int, subprocess.Popen[bytes]] = {}
        for local_rank in range(self.options.nproc):
            process, problem = self._start(words, environment, local_rank, pipes)
            if process is None:
                absent = isinstance(problem, FileNotFoundError)
                shebang = absent and "/" in words[0] and os.path.exists(words[0])
                why = (
                    "the interpreter that its first line (#!) names is missing"
                    if shebang
                    else problem.strerror
                )
                say(f"cannot run {words[0]}: {why}")
                self._end(running.values(), signal.SIGKILL)
                return 127 if absent else 126
            running[local_rank] = process
        while running:
            self.wait(_LOOK_EVERY if self.ends else 1.0)
            now = time.monotonic()
            ended = [
                (rank, code)
                for rank, process in running.items()
                for code in [process.poll()]
                if code is not None
            ]
            for local_rank, code in ended:
                del running[local_rank]
                self.note_failure(local_rank, code)
            if self.failed and self.kill_at is None and not self.told_to_end:
                first = self.failed[0]
                self._drain(pipes)  # the last words of a rank come before ours
                say("rank {} {}".format(self.options.first_rank + first["local_rank"], told(first["code"])))
                self._begin_ending(running.values(), now)
            elif self.must_pass_term_on(now):
                self._begin_ending(running.values(), now)
            if self.kill_at is not None and now >= self.kill_at:
                self._end(running.values(), signal.SIGKILL)
        self._drain(pipes)
        for pipe in pipes:
            pipe.close()
        return self.code(0)

    def _start(
        self, words: Sequence[str], environment: Mapping[str, str], local_rank: int, pipes: list[Pipe]
    ) -> tuple[subprocess.Popen[bytes] | None, OSError]:
        directory = os.path.join(self.options.ranks, str(local_rank))
        logs = [_open_log(directory, name + ".log") for name in STREAMS]
        try:
            process = subprocess.Popen(
                words,
                env={**environment, **variables(self.options, local_rank, environment)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            for name in STREAMS:  # a rank with files counts as started
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(directory, name + ".log"))
            return None, error
        for stream, log in zip((process.stdout, process.stderr), logs):
            assert stream is not None  # noqa: S101 - narrows the type
            pipe = Pipe(stream.fileno(), Printer(self.options.first_rank + local_rank), log)
            pipes.append(pipe)
            self.selector.register(stream, selectors.EVENT_READ, self._reader(stream, pipe))
        return process, OSError()

    def _reader(self, stream: Any, pipe: Pipe) -> Callable[[], None]:
        def read() -> None:
            if not pipe.read():
                self.selector.unregister(stream)

        return read

    def _drain(self, pipes: Sequence[Pipe]) -> None:
        """Take what the ranks have written; a process that one has left behind may hold its pipe open."""
        for pipe in pipes:
            pipe.read()

    def _begin_ending(self, processes: Any, now: float) -> None:
        self.kill_at = now + self.options.grace
        self._end(processes, signal.SIGTERM)

    def _end(self, processes: Any, signum: int) -> None:
        for process in list(processes):
            with contextlib.suppress(OSError):  # it has ended
                os.killpg(process.pid, signum)


class Launcher(Node):
    """DeepSpeed's launcher: it starts the ranks, and ends them if one fails."""

    def run(self, arguments: Sequence[str]) -> int:
        self._started: list[int] = []  # pids, by local rank
        self._watched: dict[int, int] = {}  # those that have not ended: pid -> local rank
        self._returned = 0  # the exit code of a rank, as the launcher says
        self._tails: dict[str, Tail] = {}
        self._rest = b""
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "deepspeed.launcher.launch", *arguments],
            env=without_us(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None  # noqa: S101 - narrows the type
        output = process.stdout
        os.set_blocking(output.fileno(), False)
        self.selector.register(output, selectors.EVENT_READ, lambda: self._take(output))
        while process.poll() is None:
            self.wait(_LOOK_EVERY)
            self._look()
            now = time.monotonic()
            if self.must_pass_term_on(now):
                self.kill_at = now + self.options.grace
                process.terminate()  # it ends its ranks
        self._take(output)  # a process that a rank has left behind may hold it open
        self._look()
        for tail in self._tails.values():
            tail.close()
        write(1, self._rest)
        if self._returned and all(each["code"] != self._returned for each in self.failed):
            # It has collected that rank before we could look; what we saw are those that it has ended then.
            gone = [rank for pid, rank in self._watched.items() if not os.path.exists(f"/proc/{pid}")]
            self.note_failure(gone[0] if len(gone) == 1 else None, self._returned, first=True)
        return self.code(exit_code(process.returncode))

    def _take(self, output: Any) -> None:
        """Pass on what the launcher itself prints, and learn from it."""
        while True:
            try:
                data = os.read(output.fileno(), _PIECE)
            except OSError:
                return
            if not data:
                with contextlib.suppress(KeyError):
                    self.selector.unregister(output)
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            if lines:
                write(1, b"\n".join(lines) + b"\n")
            for line in lines:
                spawned, returned = _SPAWNED.search(line), _RETURNED.search(line)
                if spawned and len(self._started) < self.options.nproc:
                    self._watch(int(spawned[1]))
                if returned:
                    self._returned = int(returned[1])

    def _watch(self, pid: int) -> None:
        self._watched[pid] = len(self._started)
        self._started.append(pid)
        try:
            descriptor = os.pidfd_open(pid)  # type: ignore[attr-defined, unused-ignore]
        except (AttributeError, OSError):  # before Python 3.9 and Linux 5.3; then we look now and then
            return

        def ended() -> None:
            self.selector.unregister(descriptor)
            os.close(descriptor)
            self._look()

        self.selector.register(descriptor, selectors.EVENT_READ, ended)

    def _look(self) -> None:
        for pid, code in list(self._codes()):
            local_rank = self._watched.pop(pid)
            self.note_failure(local_rank, code)
            if code != -signal.SIGTERM and [each["local_rank"] for each in self.failed] == [local_rank]:
                say(f"rank {self.options.first_rank + local_rank} {told(code)}")
        for path in rank_logs(self.options.ranks):
            if path not in self._tails:
                match = _RANK_LOG.fullmatch(os.path.basename(path))
                self._tails[path] = Tail(path, Printer(int(match[1]) if match else 0))
        for tail in self._tails.values():
            tail.read()

    def _codes(self) -> Iterator[tuple[int, int]]:
        """(pid, exit code) of the ranks that have ended, and were not collected by the launcher yet.

        proc(5), /proc/PID/stat: the third field is Z then, and the last one what waitpid(2) has.
        """
        for pid in self._watched:
            try:
                with open(f"/proc/{pid}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] == b"Z":
                status = int(fields[49])
                yield pid, -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def without_us(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the directory of this file on PYTHONPATH, which is there only for us."""
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path != here]
    found = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    if any(rest):
        found["PYTHONPATH"] = os.pathsep.join(rest)
    return found


def main(arguments: Sequence[str]) -> int:
    """Start the ranks of a node. See the module's docstring."""
    import argparse  # the reader of what we leave is to be fast

    ours = list(arguments[: arguments.index("--")])
    words = list(arguments[len(ours) + 1 :])
    parser = argparse.ArgumentParser(prog="mnt_slots", allow_abbrev=False)
    parser.add_argument("mode", choices=["command", "deepspeed"])
    parser.add_argument("--ranks", required=True)
    for name in ("first-rank", "nproc", "world-size", "nodes", "node-rank"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--grace", type=float, default=10.0)
    parser.add_argument("--names", default="")
    options = parser.parse_args(ours)
    if options.mode == "command":
        return Slots(options).run(words)
    return Launcher(options).run(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
