"""Hosts that lie to the head, without SSH: what they send comes from a generator, at memory speed.

As a script it runs one attack by many hosts at the same time and prints the peak of its own memory, in MiB,
and how many hosts ended in which way. It fails at 1 GiB, or if an error is a bug of ours:

    python tests/unit/liars.py ATTACK [HOSTS]       all attacks without arguments, 256 hosts
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, redirect_stdout
from functools import partial
from pathlib import Path
from typing import IO, Any

from lying_hosts import LyingConnection, Unsuspicious, speaking

from mnt.fetch.fetch import AT_A_TIME, fetch
from mnt.fleet import Fleet, HostConnection
from mnt.inventory.model import Host, Ssh
from mnt.launch.jobs import merge_jobs
from mnt.push.session import Progress, _Conversation
from mnt.remote.common.forms import FETCH_FILES, FETCH_LIST
from mnt.run.outputs import Outputs
from mnt.run.summary import HostRun, RunSummary
from mnt.tasks.bounds import MOST, Bound, bound_of, list_share, problem_of
from mnt.tasks.command import run_command
from mnt.tasks.fetch import Pattern, Wanted
from mnt.tasks.job import Jobs, list_jobs, read_logs
from mnt.tasks.program import held, run_program
from mnt.tasks.push import converse
from mnt.tasks.wrapper import Command
from mnt.trial.output import Collected, read_trial
from mnt.ui import long_document

MIB = 1 << 20
Deed = Callable[[bytes], Iterator[bytes]]  # from the mark of a conversation to the output


class LyingCommand(Unsuspicious):
    """A command whose output is made by a deed, as soon as the head has sent its mark."""

    def __init__(self, host: str, deed: Deed) -> None:
        self.host = host
        self._deed = deed
        self._output: Iterator[bytes] = iter(())
        self._begun = False

    def write(self, chunks: Iterable[bytes]) -> None:
        if not self._begun:
            self._begun = True
            mark = next(iter(chunks)).split(b"\n", 2)[1]
            self._output = self._deed(mark)

    def end_input(self) -> None:
        """It does not read anyway."""

    def read(self, timeout: float | None = None) -> bytes:
        return next(self._output, b"")

    def close(self) -> None:
        self._output = iter(())


def connection_of(deed: Deed) -> Callable[..., HostConnection]:
    """What makes the connections of a Fleet, to hosts that do this."""
    return partial(LyingConnection, command=partial(LyingCommand, deed=deed))


def liars(count: int, deed: Deed) -> Fleet:
    hosts = [Host(f"node{number}", "192.0.2.1", Ssh(config=None)) for number in range(1, count + 1)]
    return Fleet(hosts, fanout=count, connect=connection_of(deed))


# -- what they send


def frame(mark: bytes, kind: str, data: bytes) -> Iterator[bytes]:
    """A frame in chunks, as boot.py sends it."""
    for start in range(0, max(1, len(data)), 60_000):
        part = data[start : start + 60_000]
        yield b"%b %b %d %d\n" % (mark, kind.encode(), len(part), start + 60_000 < len(data)) + part


def answers(data: bytes) -> Deed:
    return lambda mark: frame(mark, "answer", data)


def endless(kind: str, data: bytes, most: int = 64 * MIB) -> Deed:
    """Frame after frame, as far as the head reads them, up to `most` bytes."""

    def deed(mark: bytes) -> Iterator[bytes]:
        for _ in range(most // len(data)):
            yield from frame(mark, kind, data)

    return deed


def lines(text: str, most: int = 64 * MIB) -> Deed:
    return lambda mark: itertools.repeat(mark + text.encode() + b"\n", most // len(text))


def no_end(kind: str) -> Deed:
    """A frame that never ends."""
    return lambda mark: itertools.repeat(b"%b %b 60000 1\n" % (mark, kind.encode()) + b"[" * 60_000, 2000)


def noise(mark: bytes) -> Iterator[bytes]:
    return itertools.repeat(b"x" * 65_536, 1000)


def header(mark: bytes) -> Iterator[bytes]:
    yield mark + b" "
    yield from itertools.repeat(b"x" * 65_536, 1000)


# Texts of `n` values that need much memory for their size; each is an object, as an answer must be.
SHAPES: dict[str, Callable[[int], str]] = {
    "empty lists": lambda n: '{"x":[' + ",".join(["[]"] * n) + "]}",
    "empty objects": lambda n: '{"x":[' + ",".join(["{}"] * n) + "]}",
    "objects of one key": lambda n: '{"x":[' + ",".join(['{"":0}'] * n) + "]}",
    "lists of one value": lambda n: '{"x":[' + ",".join(["[0]"] * n) + "]}",
    "deep lists": lambda n: '{"x":[' + ",".join(["[" * 30 + "]" * 30] * (n // 30)) + "]}",
    "deep objects": lambda n: '{"x":[' + ",".join(['{"":' * 29 + "{}" + "}" * 29] * (n // 30)) + "]}",
    "deep new keys": lambda n: (
        '{"x":['
        + ",".join("".join(f'{{"{i + j:x}":' for j in range(29)) + "0" + "}" * 29 for i in range(0, n, 30))
        + "]}"
    ),
    "new keys": lambda n: '{"x":[' + ",".join(f'{{"{i:x}":{i + 1000}}}' for i in range(n)) + "]}",
    "wide keys": lambda n: "{" + ",".join(f'"\u4e2d{i:x}":"\u4e2d{i:x}"' for i in range(n)) + "}",
    "accents": lambda n: "{" + ",".join(f'"\xe9{i:x}":"\xe9{i:x}"' for i in range(n)) + "}",
    "many keys": lambda n: "{" + ",".join(f'"{i:x}":{i + 1000}' for i in range(n)) + "}",
    "keys like colons": lambda n: '{"x":"v",' + ",".join(f'":{i:x}":0' for i in range(n)) + "}",
    "keys with spaces": lambda n: '{"x":"v"' + "".join(f',":{i:x}" \n : 0' for i in range(n)) + "}",
    "six keys": lambda n: '{"x":[' + ",".join(['{"a":1.5,"b":1,"c":1,"d":1,"e":1,"f":1}'] * (n // 6)) + "]}",
    "numbers": lambda n: '{"x":[' + ",".join(f"{i + 1000}" for i in range(n)) + "]}",
    "long numbers": lambda n: '{"x":[' + ",".join(["9" * 39] * n) + "]}",
    "fractions": lambda n: '{"x":[' + ",".join(["1.5"] * n) + "]}",
    "short texts": lambda n: '{"x":[' + ",".join(['"ab"'] * n) + "]}",
    "wide texts": lambda n: '{"x":[' + ",".join(['"\\u4e2d"'] * n) + "]}",
    "wider texts": lambda n: '{"x":[' + ",".join(['"\\ud83d\\ude00"'] * n) + "]}",
    "one wide text": lambda n: '{"x":"' + "a" * (4 * n) + '\\ud83d\\ude00"}',
    "one raw wide text": lambda n: '{"x":"' + "a" * (4 * n) + '\U0001f600"}',
    "brackets in texts": lambda n: '{"x":["' + '[{\\"\\\\' * n + '"]}',
}


def largest(shape: Callable[[int], str], bound: Bound) -> bytes:
    """The largest text of that shape that the head parses."""
    low, high = 60, 60
    while fits(shape(high), bound):
        low, high = high, high * 2
    while high - low > 30:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(shape(middle), bound) else (low, middle)
    return shape(low).encode()


def full(bound: Bound, start: bytes = b"") -> bytes:
    """What takes most memory: as many lists as may be, and one wide text in the bytes that are left.

    Args:
        start: keys and values that the answer has in addition.
    """
    others = bound._replace(values=bound.values - 2)
    lists = largest(lambda n: f"{{{start.decode()}{SHAPES['deep lists'](n)[1:]}", others)[:-1]
    wide = b',"y":"' + "\U0001f600".encode()
    return lists + wide + b"a" * (bound.size - len(lists + wide) - 2) + b'"}'


def fits(text: str, bound: Bound) -> bool:
    data = text.encode()
    return len(data) <= bound.size and problem_of(data, bound) is None


# -- the attacks: each returns what the head keeps


def ask(count: int, deed: Deed, name: str, bound: Bound | None = None) -> Any:
    with liars(count, deed) as fleet:
        return fleet.run(lambda host: run_program(host, name, {}, timeout=60, bound=bound))


def all_that_fits(count: int) -> Any:
    """What preflight asks, one after the other: all is kept."""
    kept = []
    for name, more in (("probe.probe", 0), ("probe.visible", 0), ("net.reach", 512 * 20)):
        bound = bound_of(name, more)
        kept.append(ask(count, answers(full(bound)), name, bound))
        assert kept[-1].ok
    return kept


def jobs(count: int, *, junk: bool = False) -> Any:
    node = '{"host":"%x","node_rank":0,"nproc":1}'
    entry = (
        '{"job":"a","host":"%s","node_rank":0,"nodes":[%s],"engine":null,"release":null,"backend":null,'
        '"outside_id":null,"master":null,"created":null,"state":"running","exit_code":null,"signal":null,'
        '"failure":null,"reason":null,"started":null,"ended":null,"listening":false,"peer":null}'
    )

    def text(n: int) -> str:
        return (
            '{"now":1.0,"jobs":[' + entry % ("node1", ",".join(node % number for number in range(n))) + "]}"
        )

    bound = bound_of("job.list", list_share(count))
    data = full(bound, text(1)[1:-1].encode() + b",") if junk else largest(text, bound)

    def ask_for_jobs(host: HostConnection) -> tuple[Jobs, float]:
        found = list_jobs(host, "~/.mnt/jobs", "node1", most=list_share(count))
        for entry in found["jobs"]:
            entry["job"] = host.target.name  # each has a job of its own
        return found, 0.0

    with liars(count, answers(data)) as fleet:
        results = fleet.run(ask_for_jobs)
    merged = merge_jobs(results.values_by_host())
    assert len(merged) == count
    return merged, results


def logs(count: int) -> Any:
    bound = bound_of("job.jobctl")
    text = full(bound._replace(size=bound.size - 3), b'"stream":"output","offset":1,').replace(
        b'"y"', b'"data"'
    )
    kept: dict[str, Any] = {}

    def read(host: HostConnection) -> Any:
        def take(frame: dict[str, Any]) -> None:
            kept[host.target.name] = frame  # a slow terminal

        return read_logs(host, "~", "j", host.target.name, on_frame=take)

    with liars(count, endless("frame", text, 2 * MIB)) as fleet:
        return kept, fleet.run(read)


def push(count: int) -> Any:
    kept: list[Any] = []
    with liars(count, endless("frame", b'{"step":"none","x":"' + b"y" * 200_000 + b'"}', 8 * MIB)) as fleet:

        def talk(host: HostConnection) -> Any:
            conversation = _Conversation(Progress())

            def take(frame: dict[str, Any]) -> None:
                conversation.check(host.target.name, frame)
                kept.append(frame)

            return converse(host, "b", "me", conversation.stdin(), take)

        results = fleet.run(talk)
    assert not kept
    return results


def holding(count: int) -> Any:
    def hold(host: HostConnection) -> None:
        with held(host, "trial.stage", {}) as first:
            assert first["x"]

    with liars(count, endless("frame", b'{"x":"' + b"y" * 60_000 + b'"}', MIB)) as fleet:
        return fleet.run(hold)


def output(count: int) -> Any:
    """`mnt run --json` of hosts that never stop, and of the head's part of the answer."""

    def deed(mark: bytes) -> Iterator[bytes]:
        yield mark + b" 7\n"
        yield from itertools.repeat("\U0001f600".encode() * 16_000, 300)

    outputs = Outputs(live=None, keep=True)

    def run(host: HostConnection) -> int:
        with ExitStack() as opened:
            return run_command(host, Command((b"true",)), outputs.open(host.target.name, opened))

    with liars(count, deed) as fleet:
        results = fleet.run(run)
    outputs.close()
    summary = RunSummary({name: HostRun(name, 0, None, 1.0, kept) for name, kept in outputs.kept.items()})
    with open("/dev/null", "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        long_document(summary.overview(), "hosts", summary.documents())
    assert len(summary.cut) == count
    return results


def deep(count: int) -> Any:
    """`--deep`: what preflight has asked before, and what the ranks print."""
    kept = all_that_fits(count)
    prefix = "p "
    collected = Collected([f"node{number}" for number in range(1, count + 1)], prefix)
    wide = "\U0001f600"
    for host in collected:
        for number in range(100):
            collected.feed(host, f"NCCL INFO Using network {wide}{number}".ljust(600, "a") + "\n")
        pairs = [[f"::{number:x}", f"::{number + 1:x}"] for number in range(600)]
        collected.feed(host, prefix + json.dumps({"event": "sockets", "connections": pairs}) + "\n")
        for number in range(1, 3000):
            collected.feed(host, f'{prefix}{{"event":"measured","bytes":{number},"seconds":1}}\n')
        collected.feed(host, wide + "b" * 1_000_000)
    trial = read_trial(tuple(collected), collected, prefix, None, count)
    return [collected, trial, *kept]


def fetched(count: int) -> Any:
    """`mnt fetch` of as many hosts as send at a time: each lists what takes most, and sends when all have."""
    hosts = tuple(Host(f"node{number}", "192.0.2.1") for number in range(1, min(count, AT_A_TIME) + 1))
    listed = threading.Barrier(len(hosts))
    name = "\U0001f4a9" + "b" * (FETCH_LIST // FETCH_FILES // 4 - 7)

    def lie(host: str, name_: str, args: dict[str, Any], stdin: IO[bytes]) -> Iterator[tuple[str, Any]]:
        if args["action"] == "survey":
            part = {
                "files": 1,
                "links": 0,
                "bytes": 1,
                "others": 0,
                "later": 0,
                "problem": None,
                "absent": False,
            }
            yield "answer", {"parts": [{**part, "digest": f"{int(host[4:]):064x}"}]}
        elif args["action"] == "list":
            for start in range(0, FETCH_FILES, 100):
                rows = [
                    [0, f"{name}{n:06}", "file", 0, 10**18 + n, 0o644, None]
                    for n in range(start, start + 100)
                ]
                yield "frame", {"entries": rows}
            yield "answer", {"tops": ["/a"]}
        else:
            listed.wait(300)
            for number in range(FETCH_FILES):
                yield "frame", {"file": number, "problem": "\U0001f4a9" * 200, "gone": False}
            yield "answer", {"sent": 0}

    with (
        tempfile.TemporaryDirectory() as to,
        Fleet(hosts, connect=partial(LyingConnection, command=speaking(lie))) as fleet,
    ):
        wanted = dict.fromkeys([host.name for host in hosts], Wanted(None, (Pattern("a"),)))
        results = fetch(fleet, wanted, ["a"], ["a"], to)
    assert all(each.failed.count == FETCH_FILES for each in results.values()), results
    return results, {}


_ERROR = json.dumps({"error": "e" * 30_000, "traceback": "t" * 30_000}).encode()

ATTACKS: dict[str, Callable[[int], Any]] = {
    "all that fits": all_that_fits,
    "jobs": jobs,
    "jobs and junk": partial(jobs, junk=True),
    "logs": logs,
    "push": push,
    "deep": deep,
    "hold": holding,
    "output": output,
    "fetch": fetched,
    "nested": lambda n: ask(n, answers(b"[" * 60_000), "probe.probe"),
    "64 MiB": lambda n: ask(n, answers(b'{"x":[' + b"[]," * (22 * MIB) + b"0]}"), "probe.probe"),
    "no end": lambda n: ask(n, no_end("answer"), "probe.probe"),
    "noise": lambda n: ask(n, noise, "probe.probe"),
    "header": lambda n: ask(n, header, "probe.probe"),
    "remarks": lambda n: ask(n, lines(" fact a " + "\U0001f600" * 800), "probe.probe"),
    "errors": lambda n: ask(n, answers(_ERROR.replace(b"eee", b"\\ud83d\\ude00", 1)), "probe.probe"),
    "tracebacks": lambda n: ask(n, lambda mark: frame(mark, "error", _ERROR), "probe.probe"),
    "hello": lambda n: ask(n, endless("hello", b'{"x":[' + b"[]," * 15_000 + b"0]}"), "probe.probe"),
    "frames": lambda n: ask(n, endless("frame", b'{"x":[' + b"1," * 9000 + b"0]}", MIB), "probe.probe"),
    "by hand": lambda n: ask(n // 16, answers(full(MOST)), "net.reach", MOST),
}


def peak_memory() -> int:
    """Of this process since it runs this program, in KiB. (getrusage counts what it was before, too.)"""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def main() -> int:
    if len(sys.argv) == 1:
        return max(
            subprocess.run([sys.executable, __file__, attack], check=False).returncode for attack in ATTACKS
        )
    attack, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 256
    kept = ATTACKS[attack](count)
    results = kept[-1] if isinstance(kept, (list, tuple)) else kept
    ways = Counter(
        "an answer" if one.error is None else str(one.error).partition(": ")[2].replace(one.host, "HOST")[:90]
        for one in results.values()
    )
    bugs = [repr(one.error.__cause__) for one in results.values() if one.error and one.error.__cause__]
    peak = peak_memory() >> 10
    print(json.dumps({"attack": attack, "MiB": peak, "ways": dict(ways), "bugs": bugs[:3]}))
    return int(bool(bugs) or peak >= 1024)


if __name__ == "__main__":
    sys.exit(main())
