"""Fuzzed answers of one host to every program, through the tasks that ask. See tests/fuzzing.py."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest
from fuzzing import ADDRESSES, mutated, run_cases
from lying_hosts import Script, WatchedFleet
from test_fuzz_facts import LIAR, NAMES, everything, inventory, rich

from mnt.errors import MntError
from mnt.facts.fleet import FleetFacts
from mnt.facts.trial import TrialCulprit
from mnt.inventory.model import Host, Network
from mnt.preflight.look import look
from mnt.preflight.registry import select
from mnt.push.manifest import build
from mnt.push.prune import prune
from mnt.push.rollback import rollback
from mnt.push.transfer import push
from mnt.push.tree import walk
from mnt.remote.probe.visible import file_in
from mnt.tasks.bootstrap import BadFrame, FrameReader
from mnt.tasks.job import await_port, join_node, list_jobs, read_logs, spawn_node, stage_node, stop_node
from mnt.tasks.logins import authorize, mesh
from mnt.tasks.program import held
from mnt.tasks.push import find_place, find_release, list_releases
from mnt.tasks.wrapper import Streams
from mnt.trial.output import read_trial

RELEASE = "20260101-120000-0badcafe"
JOB = "20260101-120000-abc123"
OLDER = "20250101-120000-0badcafe"
PUSHED = {
    **{"user": "ann", "head": "laptop", "source": "/home/ann/caf\udce9", "time": 1.7e9, "mnt": "0.1.0"},
    **{"commit": "0badcafe", "branch": None},
}
FOREIGN = {"files": 2, "bytes": 100, "names": ["runs/a", "runs/caf\udce9"]}
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO4Zs9UTuVfFzNXLyHmHYOVzBzUPlLJB4WtBHwIeIoAv"
Frames = Iterator[tuple[str, Any]]


@cache
def facts_of(host: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(msgspec.json.encode(rich(int(host[-1]))))
    return document


def failure() -> dict[str, Any]:
    words = {"signal": "SIGKILL", "message": "boom", "traceback": "Traceback ..\nboom", "victim": False}
    return {"rank": 3, "local_rank": 1, "exit_code": 137, "time": 1.7e9, **words}


def entry(host: str) -> dict[str, Any]:
    """One node's part of a job that has failed there."""
    return {
        "job": JOB,
        "host": host,
        "node_rank": int(host[-1]) - 1,
        "nodes": [{"host": name, "node_rank": rank, "nproc": 2} for rank, name in enumerate(NAMES)],
        "engine": "fsdp",
        "release": RELEASE,
        "backend": "ssh",
        "outside_id": None,
        "master": {"addr": "10.0.0.1", "port": 29500},
        "created": 1.7e9,
        "state": "failed",
        "exit_code": 137,
        "signal": "SIGKILL",
        "failure": failure(),
        "reason": {"peer": "node3", "failure": failure(), "lost": "node4", "message": "gone", "time": 1.7e9},
        "started": 1.7e9,
        "ended": 1.7e9 + 60,
        "listening": True,
        "peer": "connected",
    }


def honest(host: str, name: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
    """What a healthy host answers."""
    if name == "probe.probe":
        yield "frame", {"time": time.time()}
        yield "answer", facts_of(host)
    elif name == "ssh.mesh":
        yield "answer", {"results": {each["name"]: {"ok": True, "error": None} for each in args["workers"]}}
    elif name == "ssh.authorize":
        yield "answer", {"changes": ["made a key"], "public": KEY}
    elif name == "net.reach":
        yield "frame", {"listening": {"ports": [40001, 40002, 40003], "master": True}}
        ways = {"route": f"eth{host[-1]}", "latency": 1e-4, "mtu": 1500, "full": True, "master": "ok"}
        ports = {"40001": "ok", "40002": "refused"}
        targets = json.loads(stdin.readline() or '{"targets": []}')["targets"]
        yield "frame", {"reached": {target["name"]: {**ways, "ports": ports} for target in targets}}
        yield "answer", {}
    elif name == "probe.visible" and "write" in args:
        files = {place: file_in(place, args["content"]) for place in args["write"]}
        yield "frame", {"written": {place: {"file": file, "error": None} for place, file in files.items()}}
        yield "answer", {}
    elif name == "probe.visible":
        yield "answer", {"seen": {place: {"delay": 0.01, "error": None} for place in args["read"]}}
    elif name == "trial.stage":
        yield "frame", {"directory": "/tmp/mnt-stage-x"}
        yield "answer", {}
    elif name == "job.list":
        yield "answer", {"now": time.time(), "jobs": [entry(host)]}
    elif name == "push.receive":
        yield from receiver(args, stdin)
    else:
        yield from of_jobctl(host, args)


def of_jobctl(host: str, args: dict[str, Any]) -> Frames:
    if args["action"] == "logs":
        yield "frame", {"state": entry(host)}
        yield "frame", {"data": "caf\udce9\n", "offset": 5, "stream": "output"}
    answers = {
        "stage": {"spec": "/tmp/mnt-1/spec.json", "program": "/tmp/mnt-1/x"},
        "spawn": {"pid": 7, "peer": {"addr": "10.0.0.1", "port": 40000}},
        "join": {"pid": 7, "peer": None},
        "await port": {"listening": True, "node": entry(host)},
        "stop": {"status": "left", "killed": 3, "left": [7], "port_free": True},
        "logs": {"node": entry(host)},
    }
    yield "answer", answers[args["action"]]


def receiver(args: dict[str, Any], stdin: IO[bytes]) -> Frames:
    """The part of mnt/remote/push/receive.py in the conversation."""
    if args["action"] == "enter":
        yield "answer", {"path": f"/x/releases/{RELEASE}"}
        return
    if args["action"] == "find":
        yield (
            "answer",
            {
                "current": RELEASE,
                "path": f"/x/releases/{RELEASE}",
                "manifest_sha": "0" * 64,
                "pushed": PUSHED,
            },
        )
        return
    if args["action"] == "list":
        use = {"pid": 7, "job": JOB, "command": "python train.py"}
        for release in (RELEASE, OLDER):
            sizes = {"files": 3, "bytes": 4096, "foreign": FOREIGN}
            yield "frame", {"release": release, **sizes, "uses": [use], "pushed": PUSHED}
        yield "answer", {"current": RELEASE, "previous": OLDER}
        return
    yield "frame", {"step": "open", "numbers": [12, 4096], "in_use": [RELEASE]}
    committed, current = False, RELEASE
    while line := stdin.readline():
        if line == b"\n":  # a sign of life
            continue
        command = json.loads(line)
        step = command["do"]
        current = command["id"] if step == "switch" else current
        stdin.read(command.get("manifest", 0) + command.get("stream", 0))
        committed = committed or step == "commit"
        answers = {
            "survey": {
                "pushed": PUSHED,
                "current": RELEASE,
                "previous": OLDER,
                "taken": [RELEASE, OLDER],
                "holds": {},
            },
            "look": {"sees": []},
            "offer": {"lacks": "02"},
            "verify": {"sha": "0" * 64, "intact": True},
            "prune": {"pruned": [], "left": [{"release": OLDER, "why": "foreign", "foreign": FOREIGN}]},
        }
        yield "frame", {"step": step, **answers.get(step, {})}
    off = {"refused": {"message": "called off", "fix": None}, "called_off": True}
    yield "answer", {"current": current} if committed else {"current": RELEASE, **off}


def lying(rng: random.Random) -> Script:
    """The same, with one frame or answer that is wrong, or in the wrong place."""
    wrong = rng.choice((0, 0, 1, 2, 3))

    def speak(host: str, name: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        for number, (kind, value) in enumerate(honest(host, name, args, stdin)):
            how = rng.random()
            if number != wrong or how < 0.1:
                yield kind, value
            elif how < 0.9:
                yield kind, mutated(rng, value)
            elif how < 0.95:
                yield kind, value
                yield kind, value
            else:
                yield rng.choice(("answer", "frame", "error", "hello")), value

    return speak


def fleet(rng: random.Random, hosts: tuple[Host, ...]) -> WatchedFleet:
    return WatchedFleet(hosts, {**dict.fromkeys(NAMES, honest), LIAR: lying(rng)})


HOSTS = tuple(Host(name, name) for name in NAMES)


def shown(frame: dict[str, Any]) -> None:
    str(frame.get("data", "")).encode("utf-8", "surrogateescape")


def staged(connection: Any) -> None:
    with held(connection, "trial.stage", {"files": {}}):
        pass


SPEC: Any = {"jobs_dir": "/x", "job": "j1", "host": "h"}
TASKS: tuple[Callable[..., Any], ...] = (
    partial(stage_node, spec=SPEC),
    lambda connection: spawn_node(connection, "/x", JOB, connection.target.name),
    lambda connection: join_node(connection, "/x", JOB, connection.target.name),
    lambda connection: await_port(connection, "/x", JOB, connection.target.name),
    partial(stop_node, jobs_dir="/x", job="j1", host="h"),
    lambda connection: list_jobs(connection, "/x", connection.target.name),
    lambda connection: read_logs(connection, "/x", JOB, connection.target.name, on_frame=shown),
    find_place,
    find_release,
    list_releases,
    partial(authorize, cluster="c", authorized=[]),
    partial(mesh, workers=HOSTS),
    staged,
)


def only_the_liar(seen: WatchedFleet) -> None:
    assert seen.failed.keys() <= {LIAR}, seen.failed


def test_honest_hosts(tmp_path: Path) -> None:
    """Without a liar, all that is fuzzed below goes well."""
    cluster = replace(inventory(random.Random(1)), hosts=HOSTS, network=Network("tcp", "10.0.0.0/24"))
    (tmp_path / "train.py").write_text("print(1)\n")
    with WatchedFleet(cluster.hosts, dict.fromkeys(NAMES, honest)) as hosts:
        seen = look(hosts, cluster, cluster.hosts, select()).fleet
        assert (hosts.failed, dict(seen.reach.errors)) == ({}, {})
        assert {host: len(pairs) for host, pairs in seen.reach.pairs.items()} == dict.fromkeys(NAMES, 3)
        assert seen.mesh == dict.fromkeys(NAMES[1:])
        assert seen.visibility["/shared"].sightings.keys() == set(NAMES[1:])
        for task in TASKS:
            assert hosts.run(task).ok
        assert push(hosts, tmp_path, build(walk(tmp_path))).ok


def test_fuzz_trips(capsys: pytest.CaptureFixture[str]) -> None:
    """Preflight with all trips: probe, logins, shared storage, reach."""

    def case(rng: random.Random) -> None:
        cluster = inventory(rng)
        with fleet(rng, cluster.hosts) as hosts:
            report = look(hosts, cluster, cluster.hosts, select())
        only_the_liar(hosts)
        everything(rng, report.fleet, capsys)

    run_cases("fuzz_trips", case, sample=50)


def test_fuzz_tasks() -> None:
    """Every other task, on all hosts."""

    def case(rng: random.Random) -> None:
        with fleet(rng, HOSTS) as hosts:
            hosts.run(rng.choice(TASKS))
        only_the_liar(hosts)

    run_cases("fuzz_tasks", case)


def test_fuzz_push(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    manifest = build(walk(tmp_path))

    def case(rng: random.Random) -> None:
        with fleet(rng, HOSTS) as hosts:
            result = push(hosts, tmp_path, manifest)
        only_the_liar(hosts)
        document = json.loads(json.dumps(result.document()))
        assert document["ok"] or all(
            each["status"] != "pushed" for each in document["hosts"].values() if not result.mixed
        )

    run_cases("fuzz_push", case, sample=50)


def test_fuzz_rollback() -> None:
    """And the removal of releases."""

    def case(rng: random.Random) -> None:
        with fleet(rng, HOSTS) as hosts:
            if rng.random() < 0.5:
                with contextlib.suppress(MntError):  # one host has another release than the others
                    json.dumps(rollback(hosts, rng.choice((None, OLDER))).document())
            else:
                removed = prune(hosts, keep=1, with_results=rng.random() < 0.5)
                json.dumps({host: each.document() for host, each in removed.items()})
        only_the_liar(hosts)

    run_cases("fuzz_rollback", case, sample=50)


def test_fuzz_frames() -> None:
    """Bytes that are garbled on the way, and lines of the shell."""

    def garble(rng: random.Random, data: bytes) -> bytes:
        mark, rest = data.split(b" ", 1)
        at = rng.randint(0, len(rest))
        lines = (
            b"tried 97 x",
            b"fact os x",
            b"none",
            b"sh 0",
            b"sh \xff",
            b"answer 2 0\n{}",
            b"frame 99999999999 0",
            b"x",
        )
        return rng.choice(
            (
                data[: rng.randint(0, len(data))],
                mark + b" " + rest[:at] + bytes([rng.randrange(256)]) + rest[at + 1 :],
                mark + b" " + rng.choice(lines) + b"\n" + data,
                mark + b" frame 3 1\nabc" * 3 + data,
                data + data,
                bytes(rng.randrange(256) for _ in range(50)) + data,
            )
        )

    def case(rng: random.Random) -> None:
        with WatchedFleet(HOSTS, dict.fromkeys(NAMES, honest), {LIAR: partial(garble, rng)}) as hosts:
            hosts.run(lambda connection: list_jobs(connection, "/x", connection.target.name))
        only_the_liar(hosts)

    run_cases("fuzz_frames", case)


def test_fuzz_frame_bytes() -> None:
    def case(rng: random.Random) -> None:
        reader = FrameReader("mnt-m")
        kinds = (b"hello", b"answer", b"frame", b"none", b"sh", b"error", b"")
        for _ in range(rng.randint(1, 20)):
            size, more = (
                rng.choice((b"2", b"-1", b"9" * 5000, b"\xb2", b"")),
                rng.choice((b"0", b"1", b"", b"x")),
            )
            body = rng.choice((b"{}", b"[" * 9000, b"1e999", b"NaN", b"\xff", b'"\\ud800"', b"9" * 5000, b""))
            data = b"mnt-m " + rng.choice(kinds) + b" " + size + b" " + more + b"\n" + body
            list(reader.feed(data[: rng.randint(1, len(data))]))

    run_cases("fuzz_frame_bytes", case, allowed=BadFrame)


def test_fuzz_run() -> None:
    """The output of a command of `mnt run`, and its exit code."""

    def case(rng: random.Random) -> None:
        streams = Streams("mnt-m")
        pieces = (
            b"mnt-m",
            b" ",
            b"\n",
            b"1",
            b"9" * 5000,
            b"256",
            b"-1",
            b"\xff",
            b"\xb2",
            b"mnt-m 3\n",
            b"mnt-m7\n",
            b"text",
        )
        for _ in range(rng.randint(1, 30)):
            data = b"".join(rng.choice(pieces) for _ in range(rng.randint(1, 5)))
            rng.choice((streams.stdout, streams.stderr))(data)
        streams.rest()
        assert streams.exit_code is None or 0 <= streams.exit_code <= 255
        assert streams.group is None or streams.group < 2**32

    run_cases("fuzz_run", case)


def test_fuzz_trial(capsys: pytest.CaptureFixture[str]) -> None:
    """What one host's ranks print in the trial of --deep."""
    events = (
        {"event": "imported", "torch": "2.13.0", "seconds": 2.0, "backend": "gloo"},
        {"event": "measured", "bytes": 4096, "seconds": 0.001},
        {"event": "sockets", "connections": [["10.0.0.1", ""], ["10.0.0.1", "10.0.0.2"]]},
        {"event": "wrong", "bytes": 4096, "sum": 3.0, "expected": 4},
        {"event": "done", "world": 4},
    )
    nccl = (
        "[0] NCCL INFO NET/IB : Using [0]mlx5_6:1/RoCE [1]mlx5_7:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
        "[0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.2<0>",
        "[0] NCCL INFO Using network IB",
        "[0] NCCL INFO NET/IB: NCCL Dev 0 IbDev 1 Port 1 qpn 272 mtu 5 GID 3 (0/100000AFFFF0000) ",
    )

    def printed(rng: random.Random, *, lie: bool) -> str:
        lines = []
        for event in rng.choices(events, k=rng.randint(0, 6)):
            text = json.dumps(mutated(rng, event) if lie and rng.random() < 0.5 else event)
            if lie and rng.random() < 0.5:
                text = text.replace("10.0.0.1", rng.choice(ADDRESSES))
            lines.append("p " + (text[: rng.randint(0, len(text))] if lie and rng.random() < 0.1 else text))
        for line in rng.choices(nccl, k=rng.randint(0, 3)):
            lines.append(mutated(rng, {"": line}).__repr__() if lie and rng.random() < 0.5 else line)
        return "\n".join(lines)

    def case(rng: random.Random) -> None:
        cluster = inventory(rng)
        output = {name: printed(rng, lie=name == LIAR) for name in NAMES}
        culprit = rng.choice((None, None, TrialCulprit(LIAR, "boom")))
        trial = read_trial(NAMES, output, "p ", culprit, rng.choice((1, 4)))
        trial = replace(trial, backends=rng.choice((trial.backends, dict.fromkeys(NAMES, "nccl"))))
        facts = {name: rich(number) for number, name in enumerate(NAMES, 1)}
        everything(rng, FleetFacts(cluster, cluster.hosts, facts, trial=trial), capsys)

    run_cases("fuzz_trial", case, sample=50)
