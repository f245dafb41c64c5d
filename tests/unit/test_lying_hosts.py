"""Hosts that lie: 256 of them cost the head less than 1 GiB, and nothing of the others.

Each attack runs in a process of its own, whose peak of memory counts. All of them, with 256 hosts each:
`python tests/unit/liars.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import liars
import pytest
from liars import Deed, LyingCommand, answers, connection_of, endless, frame, lines, no_end
from lying_hosts import LyingConnection
from waiting import at_most

from mnt.errors import HostError
from mnt.fleet import Fleet, HostConnection
from mnt.fleet.processes import LocalConnection
from mnt.fleet.wire.command import ReadTimeout
from mnt.inventory.model import Host, Ssh
from mnt.tasks.program import ProgramError, held, run_program

pytestmark = pytest.mark.one_python

GIB = 1024  # MiB


def attack(name: str, count: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, liars.__file__, name, str(count)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("name", ["all that fits", "push", "hold"])
def test_256_hosts_that_send_all_they_may(name: str) -> None:
    result = attack(name, 256)
    assert sum(result["ways"].values()) == 256
    assert result["MiB"] < GIB


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.matrix) for name in ("jobs", "jobs and junk", "logs")],
)
def test_64_hosts_that_send_all_they_may(name: str) -> None:
    """These take longer: as many hosts as a command talks to at a time, which is what the peak depends on."""
    result = attack(name, 64)
    assert sum(result["ways"].values()) == 64
    assert result["MiB"] < GIB


@pytest.mark.matrix
def test_the_lists_of_eight_hosts_of_a_fetch() -> None:
    """As many as are in memory at a time."""
    assert attack("fetch", 8)["MiB"] < GIB


SAMPLE = ("by hand", "frames", "deep")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in SAMPLE else pytest.mark.matrix)
        for name in liars.ATTACKS
        if name not in ("all that fits", "jobs", "jobs and junk", "logs", "fetch")
    ],
)
def test_32_hosts_that_send_more_than_they_may(name: str) -> None:
    """As many as the machine of a test bears; the limit is that of 256, less what Python itself needs."""
    result = attack(name, 32)
    assert sum(result["ways"].values()) in (32, 2)
    assert result["MiB"] < 60 + GIB // 8 + (300 if name == "by hand" else 0)


HOSTILE: dict[str, tuple[Deed, str]] = {
    "64 MiB": (answers(b'{"x":[' + b"[]," * (1 << 24) + b"0]}"), "a frame of more than 65536 bytes"),
    "no end": (no_end("answer"), "a frame of more than 65536 bytes"),
    "no end of an error": (no_end("error"), "a frame of more than 65536 bytes"),
    "no end of a start": (no_end("hello"), "a frame of more than 65536 bytes"),
    "nested": (answers(b"[" * 60_000), "nested too deeply"),
    "nested objects": (answers(b'{"a":' * 100 + b"1" + b"}" * 100), "nested too deeply"),
    "values": (answers(b'{"x":[' + b"[]," * 20_000 + b"0]}"), "too many values"),
    "values in a frame": (endless("frame", b'{"x":[' + b"{}," * 20_000 + b"0]}"), "too many values"),
    "remarks": (lines(" tried 1 " + "x" * 30_000), "too many remarks"),
    "many remarks": (lines(" fact a b"), "too many remarks"),
    "not finite": (answers(b'{"x":[NaN,Infinity]}'), "is not JSON"),
    "digits": (answers(b'{"x":' + b"9" * 5000 + b"}"), "too many digits"),
    "no text": (answers(b'{"x":"\xff"}'), "no UTF-8"),
    "a surrogate": (answers('{"x":"\ud800"}'.encode("utf-8", "surrogatepass")), "no UTF-8"),
    "cut": (answers(b'{"x":['), "Expecting value"),
    "noise": (liars.noise, "runs no command"),
    "silence": (lambda mark: iter(()), "runs no command"),
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_the_other_hosts_notice_nothing(hostile: str) -> None:
    deed, message = HOSTILE[hostile]
    names = ["node1", "liar", "node2"]
    liar = connection_of(deed)

    def connect(host: Host, shared: Any) -> HostConnection:
        return (liar if host.name == "liar" else LocalConnection)(host, shared)

    hosts = [Host(name, "192.0.2.1", Ssh(config=None), python=(sys.executable,)) for name in names]
    with Fleet(hosts, connect=connect) as fleet:
        results = fleet.run(lambda host: run_program(host, "ssh.mesh", {"workers": []}))
    assert results.values_by_host() == {"node1": {"results": {}}, "node2": {"results": {}}}
    error = results["liar"].error
    assert error is not None
    assert error.message.startswith("liar: ")
    assert message in error.message
    assert len(error.message) < 3000
    assert error.fix
    assert not error.__cause__


class Mute(LyingCommand):
    """Says what the deed says, and then nothing, until it is closed."""

    def __init__(self, host: str, deed: Deed) -> None:
        super().__init__(host, deed)
        self._closed = threading.Event()

    def read(self, timeout: float | None = None) -> bytes:
        data = super().read(timeout)
        if not data and not self._closed.wait(timeout):
            raise ReadTimeout
        return data

    def close(self) -> None:
        self._closed.set()


@pytest.mark.parametrize("says", [True, False])
def test_a_host_that_holds_on_to_what_it_should_end(says: bool) -> None:
    running = Mute(
        "liar", endless("frame", b'{"x":1}', 7) if says else lambda mark: iter([mark + b" sh 7\n"])
    )

    class MuteConnection(LyingConnection):
        def close(self) -> None:
            running.close()

    connection = MuteConnection(Host("liar", "192.0.2.1", Ssh(config=None)), command=lambda host: running)
    with at_most(30):
        if says:
            with held(connection, "trial.stage", {}, patience=0.5) as first:
                assert first == {"x": 1}
        else:
            with (
                pytest.raises(HostError, match=r"^liar: command: trial.stage: no answer within 0.5 s"),
                held(connection, "trial.stage", {}, patience=0.5),
            ):
                raise AssertionError("it did not say anything")
    assert running._closed.is_set()


def test_a_traceback_without_end_is_cut() -> None:
    error = json.dumps({"error": "x" * 30_000, "traceback": "y" * 30_000}).encode()
    with (
        liars.liars(1, lambda mark: frame(mark, "error", error)) as fleet,
        pytest.raises(ProgramError) as raised,
    ):
        run_program(fleet.connection("node1"), "ssh.mesh", {})
    assert len(raised.value.message) < 3000


def test_the_host_itself_refuses_to_send_more(tmp_path: Path) -> None:
    """An honest host: boot.py knows the bound of the program, and says what was too large."""
    workers = [{"name": f"{number}" * 200, "address": "192.0.2.1"} for number in range(1000)]
    host = Host("here", "192.0.2.1", Ssh(config=None), python=(sys.executable,))
    args = {"jobs_dir": str(tmp_path), "host": "here", "workers": workers, "content": "x", "read": {}}
    files = {"x" * 90_000: str(tmp_path / "none")}
    with (
        Fleet([host], connect=LocalConnection) as fleet,
        pytest.raises(HostError, match=r"^here: command: .*answer of \d+ bytes: more than the 65536 allowed"),
    ):
        run_program(fleet.connection("here"), "probe.visible", {**args, "read": files, "deadline": 0.1})
