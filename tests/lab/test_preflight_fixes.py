"""What a check advises leads out: its fix is taken literally on a lab host, and preflight is run again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import faults
import pytest
from torch_hosts import Findings, RunMnt, findings_on, torch_hosts

from mnt.lab.lab import Lab, LabHost


@pytest.fixture(scope="module")
def hosts(lab_support: None) -> Iterator[Lab]:
    with torch_hosts(2) as lab:
        yield lab


@pytest.fixture
def preflight(hosts: Lab, run_mnt: RunMnt) -> Callable[[], Findings]:
    return lambda: findings_on(run_mnt, hosts)


_EDIT = re.compile(r"in /etc/hosts, remove (\S+) from all lines, and add the line: (.*)")


def follow(host: LabHost, fix: str) -> None:
    """Do what a fix says, as root of the host: its commands, and its edit of /etc/hosts."""
    for step in re.split(r"; (?:then:? )?", fix):
        if edit := _EDIT.fullmatch(step):
            edit_hosts(host, edit[1], edit[2])
        else:
            done = host.exec(["sh", "-ec", step.partition(": ")[2] or step])
            assert done.returncode == 0, (step, done.stderr)


def edit_hosts(host: LabHost, name: str, line: str) -> None:
    lines = host.exec(["cat", "/etc/hosts"]).stdout.splitlines()
    others = [" ".join(word for word in old.split() if word != name) for old in lines]
    faults.write_file(host, "/etc/hosts", "\n".join([*others, line, ""]))


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1 localhost\n127.0.1.1 node2\n{address} node2\n",
        "127.0.0.1 localhost\n{address} node2\n127.0.1.1 node2.example node2\n",  # sorted first
        "127.0.0.1 localhost node2\n",
        "127.0.0.1 localhost\n{stranger} node2\n",
    ],
)
def test_a_name_that_leads_to_the_loopback_address(
    hosts: Lab, preflight: Callable[[], Findings], text: str
) -> None:
    """Also if the training address is among the others: gloo takes the first."""
    host = hosts.host("node2")
    text = text.format(address=host.spec.training, stranger=hosts.host("node1").spec.training)
    with faults.file_holds(host, "/etc/hosts", text):
        (finding,) = preflight()
        assert (finding["check"], finding["hosts"]) == ("hostname-loopback", ["node2"])
        follow(host, finding["fix"])
        assert preflight() == []


def test_a_host_called_localhost(hosts: Lab, preflight: Callable[[], Findings]) -> None:
    """It gets a name of its own: `localhost` must lead to 127.0.0.1."""
    host = hosts.host("node2")
    with faults.file_holds(host, "/etc/hosts", "127.0.0.1 localhost\n"):
        assert host.exec(["hostname", "localhost"]).returncode == 0
        try:
            (finding,) = preflight()
            assert (finding["check"], finding["hosts"]) == ("hostname-loopback", ["node2"])
            follow(host, finding["fix"])
            assert preflight() == []
            assert host.exec(["getent", "hosts", "localhost"]).stdout.startswith(("127.0.0.1", "::1"))
        finally:
            host.exec(["hostname", "node2"])


# --- writing ---------------------------------------------------------------------------------------------


def on_node2(*commands: str) -> Callable[[LabHost], None]:
    """Commands of root, for which `~` is the ordinary user's home."""

    def run(host: LabHost) -> None:
        home = host.exec(["sh", "-c", "echo ~mnt"]).stdout.strip()
        for command in commands:
            done = host.exec(["sh", "-c", command.replace("~", home)])
            assert done.returncode == 0, (command, done.stderr)

    return run


READ_ONLY, DENIED, NO_SPACE = "read-only file system", "permission denied", "no space left on device"
TO_READ_ONLY = "mount --bind ~ ~ && mount -o remount,ro,bind ~"
LAY_OUT = "install -d -o mnt ~/project ~/project/releases ~/project/shared ~/project/shared/outputs"


@pytest.mark.parametrize(
    ("spoil", "heal", "reason", "places"),
    [
        (TO_READ_ONLY, "umount ~", READ_ONLY, "~/project, ~/.mnt/jobs"),
        (f"{LAY_OUT} && {TO_READ_ONLY}", "umount ~", READ_ONLY, "~/project"),
        (
            "mount -t tmpfs -o ro,mode=755 x ~/.mnt/jobs -o uid=$(id -u mnt)",
            "umount ~/.mnt/jobs",
            READ_ONLY,
            "~/.mnt/jobs",
        ),
        ("chmod 755 /tmp", "chmod 1777 /tmp", DENIED, "/tmp"),
        ("chmod 755 /dev/shm", "chmod 1777 /dev/shm", DENIED, "/dev/shm"),
        ("mount -o remount,ro /tmp", "mount -o remount,rw /tmp", READ_ONLY, "/tmp"),
        (f"{LAY_OUT} && chown root ~/project/releases", "true", DENIED, "~/project/releases"),
        (f"{LAY_OUT} && chmod 555 ~/project/shared/outputs", "true", DENIED, "~/project/shared/outputs"),
        ("chown root ~ && chmod 755 ~", "chown mnt ~", DENIED, "~/project"),
        ("rm -rf ~/.mnt && touch ~/.mnt", "rm -rf ~/.mnt ~/.mnt.old", "not a directory", "~/.mnt/jobs"),
    ],
)
def test_a_place_that_cannot_be_written_to(
    hosts: Lab, preflight: Callable[[], Findings], spoil: str, heal: str, reason: str, places: str
) -> None:
    host = hosts.host("node2")
    on_node2("install -d -o mnt ~/.mnt ~/.mnt/jobs")(host)
    home = host.exec(["sh", "-c", "echo ~mnt"]).stdout.strip()
    on_node2(spoil)(host)
    try:
        findings = preflight()
        assert {(each["check"], each["severity"], *each["hosts"]) for each in findings} == {
            ("writable", "fail", "node2")
        }, findings
        assert findings[0]["message"].startswith(f"cannot write to {places.replace('~', home)}"), findings
        assert findings[0]["message"].endswith(reason), findings
        for finding in findings:
            follow(host, finding["fix"])
        assert preflight() == []
    finally:
        on_node2(heal, "rm -rf ~/project ~/.mnt")(host)


FILL = "head -c 1G /dev/zero > {0}/fill 2>/dev/null; true"


@pytest.mark.parametrize(
    ("spoil", "heal", "reason"),
    [
        (
            "mount -t tmpfs -o size=1m,mode=1777 x /tmp; " + FILL.format("/tmp"),
            "umount /tmp",
            NO_SPACE,
        ),
        (
            "mount -t tmpfs -o nr_inodes=1,mode=1777 x /tmp",
            "umount /tmp",
            "no inode left (1 in use)",
        ),
        (
            "mount -t tmpfs -o size=1m,mode=1777 x /dev/shm; " + FILL.format("/dev/shm"),
            "umount /dev/shm",
            NO_SPACE,
        ),
    ],
)
def test_a_full_disk_is_one_finding(
    hosts: Lab, preflight: Callable[[], Findings], spoil: str, heal: str, reason: str
) -> None:
    host = hosts.host("node2")
    on_node2(spoil)(host)
    try:
        (finding,) = preflight()
    finally:
        on_node2(heal)(host)
    assert (finding["check"], finding["severity"], finding["hosts"]) == ("writable", "fail", ["node2"])
    assert finding["message"].endswith(reason), finding
    assert preflight() == []


def test_a_push_names_the_reason(hosts: Lab, run_mnt: RunMnt, tmp_path: Path) -> None:
    host = hosts.host("node2")
    (tmp_path / "train.py").write_text("print(1)")
    on_node2(f"{LAY_OUT} && chown root ~/project && {TO_READ_ONLY}")(host)
    try:
        done = run_mnt("push", str(tmp_path), lab=hosts)
    finally:
        on_node2("umount ~", "rm -rf ~/project")(host)
    assert done.returncode == 1
    assert READ_ONLY in done.stderr.lower(), done.stderr


# --- ports -----------------------------------------------------------------------------------------------


def test_a_port_that_an_own_job_holds(make_lab: Callable[..., Lab], run_mnt: RunMnt, tmp_path: Path) -> None:
    """The finding and the refusal of a launch name the job, and what they say stops it."""
    lab = make_lab(count=1)
    (tmp_path / "train.py").write_text("import time\ntime.sleep(600)\n")
    assert run_mnt("push", str(tmp_path), lab=lab).returncode == 0
    started = run_mnt("launch", "--detach", "--json", "train.py", lab=lab)
    assert started.returncode == 0, started.stderr
    job = json.loads(started.stdout)["job"]

    only = ("preflight", "--json", "--only", "port-free")
    (finding,) = json.loads(run_mnt(*only, lab=lab).stdout)["findings"]
    assert finding["message"] == f"port 29500 is in use by job {job} (running)"
    assert finding["fix"].startswith(f"mnt stop {job} -n node1, or ")
    for options, stop in (((), f"mnt stop {job} -n node1"), (("--no-preflight",), f"mnt stop {job}")):
        refused = run_mnt("launch", *options, "--master-port", "29500", "train.py", lab=lab)
        assert refused.returncode == 125
        assert f"{stop}, or " in refused.stderr, refused.stderr

    assert run_mnt("stop", job, "-n", "node1", lab=lab).returncode == 0
    assert json.loads(run_mnt(*only, lab=lab).stdout)["findings"] == []


# --- other commands to paste -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "heal", "check"),
    [
        ("chmod 777 /tmp", "chmod 1777 /tmp", "file-owner"),
        ("chmod 777 /home", "chmod 755 /home", "file-owner"),
        ("install -d -o mnt -m 777 ~/.mnt", "rm -rf ~/.mnt", "file-owner"),
        ("mount -t tmpfs -o size=16m,mode=1777 x /dev/shm", "umount /dev/shm", "shm"),
        ("ip link set enp26s0np0 down", "ip link set enp26s0np0 up", "nic"),
    ],
)
def test_a_command_to_paste(
    hosts: Lab, preflight: Callable[[], Findings], spoil: str, heal: str, check: str
) -> None:
    host = hosts.host("node2")
    on_node2(spoil)(host)
    try:
        findings = preflight()
        assert {(each["check"], *each["hosts"]) for each in findings} == {(check, "node2")}, findings
        for finding in findings:
            follow(host, finding["fix"])
        assert preflight() == []
    finally:
        on_node2(heal)(host)


@pytest.mark.parametrize(
    ("spoil", "heal", "check"),
    [
        ("mount -o remount,bind,ro /shared", "mount -o remount,bind,rw /shared", "storage-mount"),
        ("mount -t tmpfs over /shared", "umount /shared || true", "storage-mount"),
        ("umount -l /shared && mount -t tmpfs other /shared", "", "storage-mount"),
        ("ip link set enp26s0np0 mtu 1400", "ip link set enp26s0np0 mtu 1500", "mtu"),
        ("mount -o remount,size=1m /dev/shm", "mount -o remount,size=50% /dev/shm", "shm"),
    ],
)
def test_storage_links_and_memory(
    make_lab: Callable[..., Lab], run_mnt: RunMnt, spoil: str, heal: str, check: str
) -> None:
    """What is mounted is not what the inventory has, or not as large; and what the other checks leave out."""
    lab = make_lab(count=3)
    host = lab.host("node2")

    def found() -> Findings:
        done = run_mnt("preflight", "--json", "--only", check, lab=lab)
        findings: Findings = json.loads(done.stdout)["findings"]
        return findings

    assert found() == []
    on_node2(spoil)(host)
    try:
        (finding,) = found()
        assert (finding["check"], finding["hosts"]) == (check, ["node2"])
        follow(host, finding["fix"])
        assert found() == []
    finally:
        on_node2(*filter(None, [heal]))(host)


@pytest.mark.parametrize("setting", ["KillUserProcesses=yes", "KillOnlyUsers=mnt"])
def test_logind_that_kills(hosts: Lab, preflight: Callable[[], Findings], setting: str) -> None:
    """All of the command but the signal to logind, which does not run in a lab."""
    host, directory = hosts.host("node2"), "/etc/systemd/logind.conf.d"
    on_node2(f"mkdir -p {directory} && printf '[Login]\\n{setting}\\n' > {directory}/50-site.conf")(host)
    try:
        (finding,) = preflight()
        assert (finding["check"], finding["hosts"]) == ("session-linger", ["node2"])
        command, _, signal = finding["fix"].rpartition(" && ")
        assert signal == "sudo systemctl kill -s HUP systemd-logind"
        follow(host, command)
        assert preflight() == []
    finally:
        on_node2(f"rm -f {directory}/50-site.conf {directory}/zz-mnt.conf")(host)
