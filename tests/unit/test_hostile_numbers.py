"""Numbers with more digits than int() takes: an error of the phase in which they come, or no number."""

from __future__ import annotations

import contextlib
import time

import pytest

from mnt.errors import UsageError
from mnt.facts.system import GpuRow, LogLine
from mnt.fleet.login.destination import _parse_hop, _port
from mnt.preflight import nvidia
from mnt.preflight.parity import satisfies
from mnt.remote.job.channel import Broken, parse_line
from mnt.tasks import bootstrap
from mnt.tasks.bootstrap import BadFrame
from mnt.tasks.wrapper import Streams
from mnt.trial.output import read_trial

LONG = "9" * 5000


@pytest.mark.parametrize("text", [LONG, "-" + LONG, "²", "", "0x" + "f" * 5000, "nan", "inf", "1e999"])
def test_what_is_no_number(text: str) -> None:
    assert nvidia.number(text) is None
    assert nvidia.slowdowns(GpuRow("0", event_reasons=text)) == []
    assert satisfies(text, ">=2") is False
    nvidia.visible(text, 8)


@pytest.mark.parametrize(
    ("devices", "count"), [("0,1," + LONG + ",2", 2), ("-1", 0), ("0,-1,1", 1), ("GPU-x,7", 2)]
)
def test_gpus_that_are_shown(devices: str, count: int) -> None:
    assert nvidia.visible(devices, 8) == count


@pytest.mark.parametrize("line", ["NVRM: Xid (PCI:0): " + LONG, "NVRM: Xid (" * 100_000])
def test_messages_of_the_kernel(line: str) -> None:
    started = time.process_time()
    found = [xid.code for xid in nvidia.xids((LogLine(text=line, age=1.0),))]
    assert found in ([], [999999999])
    assert time.process_time() - started < 1


@pytest.mark.parametrize("text", [LONG, "²", "٣٣", "", "0", "65536", "22x"])
def test_ports_of_ssh_config(text: str) -> None:
    with pytest.raises(UsageError, match="not a port"):
        _port(text, "node1")


@pytest.mark.parametrize("word", ["gate:" + LONG, "a@" * 100_000 + ":1", "[" * 100_000])
def test_gateways(word: str) -> None:
    started = time.process_time()
    with contextlib.suppress(UsageError):
        _parse_hop(word)
    assert time.process_time() - started < 1


@pytest.mark.parametrize("size", [LONG, "²", "-1", "", "9" * 41, "1_0"])
def test_sizes_of_frames(size: str) -> None:
    mark = bootstrap.new_mark()
    reader = bootstrap.FrameReader(mark)
    with pytest.raises(BadFrame):
        list(reader.feed(f"{mark} frame {size} 0\n".encode()))


@pytest.mark.parametrize(
    "line",
    [
        b'{"n": NaN}',
        b'{"n": [-Infinity]}',
        b'{"n": 1e999}',
        b'{"n": ' + b"9" * 41 + b"}",
        b'{"n": ' + LONG.encode() + b"}",
        b'{"n":' + b"[" * 60_000,
        b'{"n": "\xff"}',
        '{"n": 1}'.encode("utf-16"),
    ],
)
def test_messages_of_strangers_to_a_supervisor(line: bytes) -> None:
    with pytest.raises(Broken, match="not JSON"):
        parse_line(line)


def test_events_of_a_trial() -> None:
    lines = [
        "x" + "[" * 200_000,
        "x{" + f'"event": "end", "n": {LONG}' + "}",
        "xNaN",
        "x5",
        "NCCL INFO NET/IB : " * 50_000,
    ]
    lines += [f"NCCL INFO NET/IB : Dev {LONG} Port 1 qpn 1 GID {LONG} ", "Dev 1 Port 1 qpn 1 " * 50_000]
    started = time.process_time()
    trial = read_trial(("node1",), {"node1": "\n".join(lines)}, "x", None, 1)
    assert trial.gids == {}
    assert time.process_time() - started < 2


@pytest.mark.parametrize("digits", [LONG.encode(), b"9" * 12, b"", "²".encode()])
def test_exit_codes_and_process_groups(digits: bytes) -> None:
    streams = Streams("mark")
    streams.stdout(b"mark" + digits + b"\n")
    streams.stderr(b"mark\n" + b"mark " + digits + b"\n")
    assert (streams.group, streams.exit_code) == (None, None)
