"""What comes from elsewhere is data: names through real shells, and hosts that answer with malice."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import faults
import pytest
import sessions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab_fleets import fleet_of, hosts_of
from test_programs import ECHO, Define, define  # noqa: F401 - a fixture

from mnt.errors import HostError, UsageError
from mnt.fleet import Fleet, HostConnection, Timeouts
from mnt.lab.lab import Lab, LabHost, LabRequest, down
from mnt.tasks.job import list_jobs, stop_node
from mnt.tasks.logins import mesh
from mnt.tasks.program import run_program

MakeLab = Callable[..., Lab]
Mnt = Callable[..., subprocess.CompletedProcess[str]]

CANARY = "/tmp/mnt-canary"
BAIT = [
    f"$(touch {CANARY})",
    f"`touch {CANARY}`",
    f"; touch {CANARY};",
    f"\ntouch {CANARY}\n",
    f"' ; touch {CANARY} ; '",
    f'" ; touch {CANARY} ; "',
    f"-oProxyCommand=touch {CANARY}",
    f"--rsh=touch {CANARY}",
    f"& touch {CANARY} &",
    f"\\\n; touch {CANARY}",
    "$$ $local_rank ${local_rank} ${ $",  # a template of torchrun's
    "-rf",
    "--",
    "~",
    "*",
    "%h",
    "!!",
]
_ODD = " '\"\\;$()`&|<>*?!~#{}[]\n\t-=%,aé\x01\x7f\u2028"
odd_text = st.one_of(st.sampled_from(BAIT), st.text(_ODD, max_size=30))
few = settings(
    max_examples=12, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def no_canary(lab: Lab) -> Iterator[None]:
    """Nothing of the bait is ever run: not here, not there."""
    yield
    assert not os.path.exists(CANARY)
    for host in lab.hosts:
        assert host.exec(["test", "!", "-e", CANARY]).returncode == 0, host.name


# -- names


@pytest.fixture(scope="module", params=["bash", "dash", "fish", "tcsh"])
def shell_host(lab: Lab, request: pytest.FixtureRequest) -> Iterator[HostConnection]:
    """A connection to a host whose user has that login shell."""
    host = lab.host("node4")
    path = host.exec(["which", request.param]).stdout.strip()
    if not path:
        pytest.skip(f"{request.param} is not installed")
    faults.set_shell(host, path)
    with fleet_of(lab, timeouts=Timeouts()) as fleet:
        yield fleet.connection("node4")
    faults.set_shell(host, "/bin/bash")


def test_arguments_of_programs(shell_host: HostConnection, define: Define) -> None:  # noqa: F811
    name = define(ECHO)

    @few
    @given(
        value=st.dictionaries(odd_text, st.lists(odd_text, max_size=3), max_size=3),
        stream=st.text(max_size=20),
    )
    def check(value: dict[str, list[str]], stream: str) -> None:
        answer = run_program(shell_host, name, {"value": value}, stdin=[stream.encode()] if stream else None)
        assert answer["args"]["value"] == value
        assert answer["stdin"] == stream

    check()


_KEPT_BACK = (b".", b"..", b".git", b"outputs")
file_names = st.one_of(
    st.sampled_from([bait.replace("/", "_").encode() for bait in BAIT if bait != "~"]),
    st.binary(min_size=1, max_size=30).filter(lambda name: not set(name) & set(b"\0/")),
).filter(lambda name: name not in _KEPT_BACK)


def test_paths_that_are_pushed(lab: Lab, run_mnt: Mnt, tmp_path: Path) -> None:
    count = 0

    @settings(few, max_examples=3)
    @given(names=st.sets(file_names, min_size=8, max_size=20))
    def check(names: set[bytes]) -> None:
        nonlocal count
        count += 1
        tree = os.path.join(os.fsencode(tmp_path), b"tree%d" % count)
        os.mkdir(tree)
        for name in names:
            Path(os.fsdecode(os.path.join(tree, name))).write_bytes(name)
        done = run_mnt("push", "-n", "node1", os.fsdecode(tree), lab=lab)
        assert done.returncode == 0, done.stderr
        told = lab.host("node1").exec(
            ["sh", "-c", 'cd ~mnt/project/current && exec /usr/bin/python3 -c "$1"', "sh", _LISTING]
        )
        found = {bytes.fromhex(name): bytes.fromhex(text) for name, text in json.loads(told.stdout).items()}
        found.pop(b"outputs", None)
        assert found == {name: name for name in names}

    check()


_LISTING = """
import json, os
names = [name for name in os.listdir(b".") if os.path.isfile(name)]
print(json.dumps({name.hex(): open(name, "rb").read().hex() for name in names}))
"""


def test_arguments_of_jobs(lab: Lab, run_mnt: Mnt, tmp_path: Path) -> None:
    script = "import json, sys\nprint('ARGS ' + json.dumps(sys.argv[1:]), flush=True)\n"
    (tmp_path / f"it's a $(touch {CANARY.replace('/', '_')}).py").write_text(script)
    (name,) = os.listdir(tmp_path)
    assert run_mnt("push", "-n", "node1", str(tmp_path), lab=lab).returncode == 0

    # A launch takes seconds, and any number of arguments.
    @settings(few, max_examples=2)
    @given(odd=st.lists(odd_text, min_size=20, max_size=40))
    def check(odd: list[str]) -> None:
        arguments = [*odd, *BAIT]
        done = run_mnt("launch", "--no-preflight", "-n", "node1", name, *arguments, lab=lab)
        assert done.returncode == 0, done.stderr
        (line,) = [line for line in done.stdout.splitlines() if "ARGS " in line]
        assert json.loads(line.partition("ARGS ")[2]) == arguments

    check()


def test_names_of_jobs(lab: Lab) -> None:
    with fleet_of(lab, timeouts=Timeouts()) as fleet:
        connection = fleet.connection("node1")
        for name in [*BAIT, "../../etc", "a/b", "", "."]:
            with pytest.raises(HostError, match=r"^node1: command: .* is not a job's name") as refusal:
                stop_node(connection, "~/.mnt/jobs", name, "node1", grace=0)
            assert "Traceback" not in refusal.value.message


@pytest.mark.parametrize("command", ["status", "logs", "stop"])
def test_names_of_jobs_on_the_command_line(lab: Lab, run_mnt: Mnt, command: str) -> None:
    for name in BAIT[2:4]:
        done = run_mnt(command, "--", name, lab=lab)
        assert done.returncode in (1, 2), (name, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("bait", [BAIT[0], BAIT[2], f"-oProxyCommand=touch {CANARY}"])
@pytest.mark.parametrize("field", ["address", "user", "gateway", "match"])
def test_hosts_and_users(lab: Lab, tmp_path: Path, bait: str, field: str) -> None:
    """Names go to no shell and are no option: not of our own client, nor of `ssh -G`, nor on the hosts."""
    host = hosts_of(lab)[1]
    if field == "address":
        host = replace(host, address=bait)
    elif field == "match":  # ssh itself is asked
        (tmp_path / "config").write_text("Match all\nMatch host nobody\n Port 1\n")
        host = replace(host, name=bait, address=bait, ssh=replace(host.ssh, config=str(tmp_path / "config")))
    else:
        host = replace(host, ssh=replace(host.ssh, **{field: bait}))
    try:
        with Fleet([host]) as fleet:
            assert not fleet.run(lambda connection: None).ok
    except UsageError:  # it is refused before anybody tries
        pass
    with fleet_of(lab, timeouts=Timeouts()) as fleet:
        (login,) = mesh(fleet.connection("node1"), [host], timeout=60).values()
    assert (login["ok"], field) in ((False, "address"), (False, "match"), (False, "user"), (True, "gateway"))


# -- answers

_EVIL = """#!/usr/bin/python3
import json, sys
sys.stdin.buffer.readline()
mark = sys.stdin.buffer.readline().strip()
out = sys.stdout.buffer
def line(text):
    out.write(mark + b" " + text + b"\\n")
def chunk(kind, data, more=0):
    line(b"%b %d %d" % (kind, len(data), more))
    out.write(data)
def answer(value):
    line(b"sh 1")
    chunk(b"hello", b"{}")
    text = json.dumps(value).encode()
    for start in range(0, len(text), 4000):
        chunk(b"answer", text[start : start + 4000], start + 4000 < len(text))
exec(open("/home/mnt/deed").read())
out.flush()
"""


@contextmanager
def evil_hosts(count: int, evil: Sequence[str]) -> Iterator[Lab]:
    """A lab; the hosts that `evil` names have an evil login shell."""
    name = sessions.new_name()
    try:
        lab = Lab.up(LabRequest(name=name, count=count))
        for host in map(lab.host, evil):
            faults.write_file(host, "evil", _EVIL, user=True)
            host.exec(["chmod", "+x", "evil"], user=True)
            faults.set_shell(host, "/home/mnt/evil")
        yield lab
    finally:
        down(name)


@pytest.fixture(scope="module")
def evil_lab(lab_support: None) -> Iterator[Lab]:
    """Two hosts, of which node2 has an evil login shell."""
    with evil_hosts(count=2, evil=["node2"]) as lab:
        yield lab


def do(host: LabHost, deed: str) -> None:
    faults.write_file(host, "deed", deed, user=True)


@pytest.mark.parametrize(
    ("deed", "message"),
    [
        ("while True: line(b'tried 1 x')", "too many remarks of a shell"),
        ("[line(b'fact %d y' % n) for n in range(200)]", "too many remarks of a shell"),
        ("while True: chunk(b'frame', b'x' * 60000, 1)", "a frame of more than 65536 bytes"),
        ("while True: out.write(b'x' * 65536)", "no answer within 3 s"),
        ("line(b'sh 1'); [chunk(b'hello', b'{}') for _ in range(9)]", "a second start"),
        ("chunk(b'answer', b'[' * 60000)", "nested too deeply"),
        ("chunk(b'answer', b'{\"x\":[' + b'[],' * 18000 + b'0]}')", "too many values"),
        ("while True: chunk(b'frame', b'{\"x\":[' + b'{},' * 18000 + b'0]}')", "too many values"),
        ("while True: line(b'fact a ' + b'x' * 60000)", "too many remarks of a shell"),
        (
            "chunk(b'error', b'{' + b' ' * 60000, 1); chunk(b'error', b' ' * 60000)",
            "a frame of more than 65536 bytes",
        ),
        ("chunk(b'answer', b'{\"a\":' + b'9' * 5000 + b'}')", "an integer of too many digits"),
        ("chunk(b'answer', b'{\"a\":1e999}')", "a number that is too large"),
        ("chunk(b'answer', b'[1]')", "the answer is no JSON object"),
        ("chunk(b'frame', b'7')", "the frame is no JSON object"),
        ("chunk(b'error', b'{}')", "answer: Object missing required field `error`"),
        ("chunk(b'answer', b'{}' , 5)", "a frame of no known size"),
        ("line(b'sh 1'); line(b'none')", "no Python 3.8 or newer"),
        ("", "runs no command"),
    ],
)
def test_what_a_host_sends_is_bounded_and_parsed_strictly(evil_lab: Lab, deed: str, message: str) -> None:
    do(evil_lab.host("node2"), deed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limit = 3 if "within 3 s" in message else 60
    with fleet_of(evil_lab) as fleet, pytest.raises(HostError, match=r"^node2: ") as refusal:
        run_program(fleet.connection("node2"), "ssh.mesh", {"workers": []}, timeout=limit)
    assert message in refusal.value.message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # KiB


@pytest.mark.parametrize(
    "deed",
    [
        "while True: chunk(b'answer', b'[' * 60000, 1)",
        "chunk(b'answer', b'[[],' * 15000 + b'[]' + b']' * 15000)",
        "import os\nfor _ in range(500): os.write(2, b'e' * 65536); out.write(b'x' * 60000)\nanswer([1])",
    ],
)
def test_the_results_of_the_other_host_are_untouched(evil_lab: Lab, deed: str) -> None:
    do(evil_lab.host("node2"), deed)
    with fleet_of(evil_lab) as fleet:
        results = fleet.run(lambda host: run_program(host, "ssh.mesh", {"workers": []}))
    assert results.values_by_host() == {"node1": {"results": {}}}
    error = results["node2"].error
    assert error is not None
    assert error.message.startswith("node2: answer: ssh.mesh: ")
    assert len(error.message) < 1000


ANSWERS: list[dict[str, Any]] = [
    {},
    {"refused": 1},
    {"refused": {}},
    {"now": 1.0, "jobs": [{}]},
    {"now": "x", "jobs": {}},
    {"now": 1.0, "jobs": [{"job": "\x1b]0;owned\x07", "host": 7, "nodes": [], "state": None}]},
    {"results": {"node1": None}, "current": 5, "has": "yes", "time": [], "session": None, "hostname": {}},
    {"node": {"state": "running"}, "status": "gone", "killed": "all", "left": None, "port_free": 0},
]


@pytest.fixture(scope="module")
def liars(lab_support: None) -> Iterator[Lab]:
    """node1 is honest; each of the others has one of ANSWERS to whatever it is asked."""
    evil = [f"node{number}" for number in range(2, len(ANSWERS) + 2)]
    with evil_hosts(count=len(ANSWERS) + 1, evil=evil) as lab:
        for name, answer in zip(evil, ANSWERS, strict=True):
            do(lab.host(name), f"answer({answer!r})")
        yield lab


@pytest.mark.parametrize("command", ["status", "preflight", "net", "logs", "stop --all", "push ."])
def test_a_host_that_lies_breaks_no_command(liars: Lab, run_mnt: Mnt, tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("x")
    done = run_mnt(*command.split(), lab=liars, cwd=tmp_path)
    assert "Traceback" not in done.stderr, done.stderr
    assert "\x1b]0;" not in done.stdout + done.stderr
    assert done.returncode == 1, (done.stdout, done.stderr)
    if command == "preflight":
        assert re.search(r"^node\[2-9\] +ssh ", done.stdout, re.M), done.stdout
    else:  # each of them is found out
        told = set(re.findall(r"^(?:mnt: |warning: )?(node\d+): ", done.stderr, re.M))
        assert told == {host.name for host in liars.hosts} - {"node1"}, done.stderr


KEYS = st.sampled_from(["now", "jobs", "job", "host", "nodes", "state"])


@few
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
        max_leaves=10,
    ).filter(lambda value: not (isinstance(value, dict) and value.get("jobs") == []))
)
def test_any_answer_to_a_list_of_jobs(evil_lab: Lab, value: Any) -> None:
    do(evil_lab.host("node2"), f"answer({value!r})")
    with fleet_of(evil_lab) as fleet, pytest.raises(HostError):
        list_jobs(fleet.connection("node2"), "~/.mnt/jobs", "node2")
