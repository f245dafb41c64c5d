"""Labs come up quickly, keep apart, and leave nothing, however they end."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import faults
import pytest
import remains
import sessions
from ssh_client import ssh
from waiting import PATIENCE, at_most, wait_for

from mnt.errors import MntError
from mnt.lab import processes, spec, store, system
from mnt.lab.lab import Lab, LabRequest, down

Run = Callable[..., subprocess.CompletedProcess[str]]


def mnt_lab(*args: str) -> list[str]:
    return [sys.executable, "-m", "mnt", "lab", *args]


@pytest.fixture
def name(lab_support: None) -> Iterator[str]:
    """A lab's name, free at the start and at the end."""
    name = sessions.new_name()
    yield name
    down(name)


def machine() -> tuple[str, str, set[Path]]:
    """What only a careless lab would change: the machine's mounts, named namespaces, / and /run."""
    named = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    files = {*Path("/").iterdir(), *Path("/run").iterdir()} - {store.LAB_ROOT}
    return Path("/proc/self/mounts").read_text(), named, files


@pytest.mark.timing
def test_up_is_quick_and_down_leaves_nothing(name: str, run_mnt: Run) -> None:
    before = machine()
    with at_most(6):
        done = run_mnt("lab", "up", "--name", name)
    assert done.returncode == 0, done.stderr
    assert "4 hosts up" in done.stderr

    lab = Lab.find(name)
    own = remains.network_namespaces(lab)
    detached = ssh(lab, "node1", "setsid sleep 600 >/dev/null 2>&1 </dev/null & echo started")
    assert detached.stdout == "started\n"

    since = remains.now()
    assert "sleep" in "".join(remains.still_in(own, since))

    done = run_mnt("lab", "down", "--name", name)
    assert (done.returncode, done.stderr) == (0, f"lab {name} is gone\n")
    assert remains.of_lab(name) == []
    assert remains.still_in(own, since) == []
    assert machine() == before


@pytest.mark.timing
def test_many_hosts_come_up(name: str) -> None:
    with at_most(15):
        lab = Lab.up(LabRequest(name=name, count=64))
    assert ssh(lab, "node64", "ssh -oBatchMode=yes node1 hostname").stdout == "node1\n"
    lab.down()
    assert remains.of_lab(name) == []


@pytest.mark.parametrize("moment", [0.05, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.7, 1.0])
def test_up_that_is_killed_leaves_nothing(name: str, moment: float) -> None:
    """At each of these moments, seconds after the start, it has come further: from nothing to all done."""
    with subprocess.Popen(mnt_lab("up", "16", "--name", name), stderr=subprocess.DEVNULL) as up:
        time.sleep(moment)
        up.kill()
    down(name)
    assert remains.of_lab(name) == []


def anchor_is_there(record: store.Record) -> bool:
    return record.anchor is not None


def hosts_are_there(record: store.Record) -> bool:
    return record.spec.head_link in (link for _, link in socket.if_nameindex())


def await_state(name: str, reached: Callable[[store.Record], bool]) -> None:
    wait_for(lambda: (record := store.read(name)) is not None and reached(record), every=0.001)


@pytest.mark.parametrize("reached", [anchor_is_there, hosts_are_there])
def test_a_lab_whose_up_is_killed_falls_by_itself(name: str, reached: Callable[[store.Record], bool]) -> None:
    """Only its directory remains, and the next `up` clears that away."""
    with subprocess.Popen(mnt_lab("up", "16", "--name", name), stderr=subprocess.DEVNULL) as up:
        await_state(name, reached)
        up.kill()
    wait_for(lambda: remains.of_lab(name) == [f"directory {store.directory(name)}"])
    lab = Lab.up(LabRequest(name=name, count=1))
    assert ssh(lab, "node1", "hostname").stdout == "node1\n"


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_up_that_is_interrupted_cleans_up_itself(name: str, stop: signal.Signals) -> None:
    with subprocess.Popen(mnt_lab("up", "32", "--name", name), stderr=subprocess.DEVNULL) as up:
        await_state(name, anchor_is_there)
        up.send_signal(stop)
        assert up.wait(PATIENCE) == 130
    assert remains.of_lab(name) == []


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.1, 0.2])
def test_up_notices_that_the_lab_dies_under_it(name: str, seconds: float) -> None:
    with subprocess.Popen(mnt_lab("up", "64", "--name", name), stderr=subprocess.PIPE, text=True) as up:
        await_state(name, anchor_is_there)
        time.sleep(seconds)
        record = store.read(name)
        assert record is not None
        processes.end_all(record.spec.token)
        said = up.communicate(timeout=PATIENCE)[1]
    assert up.returncode == 1
    assert said.startswith("mnt: "), said
    assert remains.of_lab(name) == []


def test_a_lab_outlives_the_terminal_that_started_it(name: str) -> None:
    subprocess.run(["setsid", "--wait", *mnt_lab("up", "1", "--name", name)], check=True)
    lab = Lab.find(name)
    assert lab.record.anchor is not None
    assert os.getsid(lab.record.anchor.pid) != os.getsid(0)
    assert ssh(lab, "node1", "hostname").stdout == "node1\n"


def test_labs_do_not_meet(make_lab: Callable[..., Lab]) -> None:
    one, two = make_lab(count=1), make_lab(count=1)
    assert not one.spec.management.overlaps(two.spec.management)
    assert not one.spec.training.overlaps(two.spec.training)
    assert one.spec.uid != two.spec.uid
    other = two.host("node1").spec.management
    assert "unreachable" in one.host("node1").exec(["ip", "route", "get", other]).stderr
    one.down()
    assert remains.of_lab(one.spec.name) == []
    assert ssh(two, "node1", "hostname").stdout == "node1\n"


def test_the_labs_user_is_nobody_of_a_directory_that_lists_nobody(
    make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has the id of the lab's user can enter the lab's files by /proc/PID/root."""
    people = {*range(1000, 60001), *spec.UIDS[:1000]}
    real = pwd.getpwuid
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: real(0) if uid in people else real(uid))
    lab = make_lab(count=1)
    assert lab.spec.uid not in people
    assert lab.host("node1").exec(["id", "-u"], user=True).stdout == f"{lab.spec.uid}\n"
    assert ssh(lab, "node1", "stat -c %u .").stdout == f"{lab.spec.uid}\n"


def test_a_name_is_taken_once(name: str) -> None:
    """Of several at the same time, one starts the lab; the others say that it is there, and do it no harm."""
    ups = [
        subprocess.Popen(mnt_lab("up", "2", "--name", name), stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [up.communicate(timeout=PATIENCE)[1] for up in ups]
    assert sorted(up.returncode for up in ups) == [0, 1, 1]
    assert sum(f"lab '{name}' is up already, with 2 hosts" in text for text in said) == 2
    assert ssh(Lab.find(name), "node2", "hostname").stdout == "node2\n"


def test_a_host_that_does_not_start_takes_the_lab_with_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnt.lab.files.SSHD_CONFIG", "NoSuchWord yes\n")
    with pytest.raises(MntError, match=r"the lab did not start: node\d: .*sshd_config: terminating"):
        Lab.up(LabRequest(name=name, count=2))
    assert remains.of_lab(name) == []


def test_status_and_down_of_what_is_not_there(name: str, run_mnt: Run) -> None:
    done = run_mnt("lab", "down", "--name", name)
    assert (done.returncode, done.stderr) == (0, f"no lab {name}\n")
    done = run_mnt("lab", "exec", "--name", name, "node1", "true")
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, f"mnt: no lab '{name}' is up")
    assert name not in run_mnt("lab", "status").stdout


def test_status_tells_who_is_alive(make_lab: Callable[..., Lab], run_mnt: Run) -> None:
    lab = make_lab(count=2, nics=("ib0", "bond0.7"))
    faults.power_off(lab.host("node2"))
    labs = json.loads(run_mnt("lab", "status", "--json").stdout)["labs"]
    (entry,) = [entry for entry in labs if entry["lab"] == lab.spec.name]
    one, two = lab.hosts
    assert entry["state"] == "up"
    assert entry["inventory"] == str(lab.inventory_path)
    assert entry["hosts"] == [
        {
            "host": "node1",
            "state": "up",
            "pid": one.init.pid,
            "address": one.spec.management,
            "training": one.spec.training,
            "nic": "ib0",
        },
        {
            "host": "node2",
            "state": "off",
            "pid": None,
            "address": two.spec.management,
            "training": two.spec.training,
            "nic": "bond0.7",
        },
    ]
    text = run_mnt("lab", "status").stdout
    assert f"lab {lab.spec.name}: up" in text


def test_a_lab_of_a_test_session_that_was_killed_is_reclaimed(lab_support: None) -> None:
    """This session's labs are not."""
    script = (
        "from mnt.lab.lab import Lab, LabRequest; import sessions; name = sessions.new_name(); print(name);"
        "Lab.up(LabRequest(name=name))"
    )
    here = os.path.dirname(__file__)
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, cwd=here, stdout=subprocess.PIPE, text=True, check=True)
    abandoned = told.stdout.strip()
    own = Lab.up(LabRequest(name=sessions.new_name(), count=1))
    try:
        sessions.reclaim()
        assert remains.of_lab(abandoned) == []
        assert ssh(own, "node1", "hostname").stdout == "node1\n"
    finally:
        own.down()


def test_bad_words_on_the_command_line(lab_support: None, run_mnt: Run) -> None:
    for words, complaint in (
        (("up", "0"), "1 to 256 hosts"),
        (("up", "--rate", "fast"), "'fast' is not a rate"),
        (("up", "--nics", "eth0,lo"), "'lo' is not a valid name"),
        (("up", "--name", "a/b"), "'a/b' is not valid"),
        (("down", "--all", "--name", "x"), "exclude each other"),
    ):
        done = run_mnt("lab", *words)
        assert done.returncode == 2
        assert complaint in done.stderr


def test_root_is_needed() -> None:
    """What root may import an ordinary user may not, so the rights are dropped after importing."""
    script = (
        "import os, sys, mnt.cli, mnt.cli.lab, mnt.lab.lab, mnt.ui;"
        "os.setgid(65534); os.setuid(65534); sys.argv = ['mnt', 'lab', *sys.argv[1:]]; mnt.cli.main()"
    )
    for words in (("up",), ("status",), ("down",), ("exec", "node1", "true")):
        done = subprocess.run(
            [sys.executable, "-c", script, *words], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr.splitlines()) == (
            1,
            [
                "mnt: a lab needs root, to create namespaces, mounts and links",
                "  fix: run the command with sudo",
            ],
        )


@pytest.fixture
def tools(lab_support: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all of the lab's PATH, with the machine's tools in it."""
    for tool in ("ip", "tc", "mount", "umount", "mountpoint", "nsenter", "pivot_root", "setpriv", "setsid"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool, path=system.PATH)))
    for tool in ("unshare", "sshd", "ssh", "mkdir", "sh"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool, path=system.PATH)))
    monkeypatch.setattr(system, "PATH", str(tmp_path))
    system.require_lab_support(shaping=True)
    return tmp_path


def test_missing_tools_are_named_with_their_packages(tools: Path) -> None:
    (tools / "sshd").unlink()
    (tools / "tc").unlink()
    with pytest.raises(MntError, match="programs that a lab needs are missing: tc, sshd") as error:
        system.require_lab_support(shaping=False)
    assert error.value.fix == "apt-get install iproute2 openssh-server"


@pytest.mark.parametrize(
    ("tool", "word", "complaint", "option"),
    [
        ("mount", "overlay", "the kernel does not support overlayfs: no such thing", "CONFIG_OVERLAY_FS"),
        ("ip", "bridge", "the kernel does not support bridges: no such thing", "CONFIG_BRIDGE"),
        ("ip", "veth", "the kernel does not support veth links: no such thing", "CONFIG_VETH"),
        (
            "tc",
            "tbf",
            "the kernel does not support token buckets (for --rate): no such thing",
            "CONFIG_NET_SCH_TBF",
        ),
        ("unshare", "--net", "this machine cannot create namespaces: no such thing", "privileged"),
    ],
)
def test_what_the_kernel_lacks_is_named(
    tools: Path, tool: str, word: str, complaint: str, option: str
) -> None:
    real = (tools / tool).readlink()
    (tools / tool).unlink()
    (tools / tool).write_text(
        f'#!/bin/sh\ncase " $* " in *" {word} "*) echo no such thing >&2; exit 1;; esac\nexec {real} "$@"\n'
    )
    (tools / tool).chmod(0o755)
    with pytest.raises(MntError) as error:
        system.require_lab_support(shaping=True)
    assert error.value.message == complaint
    assert option in str(error.value.fix)
