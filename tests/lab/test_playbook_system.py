"""playbooks/system.yml, on hosts without the packages, and one of them without any Python."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mirror import make_bare, serving
from setups import allow_sudo, changed, output, problem, setup, snapshot, unjudged

from mnt.lab.lab import Lab, LabHost

pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")

pytestmark = pytest.mark.matrix  # tox -e playbooks

PYTHON = "/usr/bin/python3"
INTERPRETER = ["python3.11-minimal", "libpython3.11-minimal", "python3-minimal", "python3"]  # of Debian 12
LISTED = ["python3-venv", "python3-pip", "python3-dev", "pdsh", "rsync", "libaio-dev", "nfs-common"]
HOLD = """
import fcntl, os, sys
files = [open(path, "w") for path in sys.argv[1:]]
for file in files:
    fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Two hosts with apt, and with neither pdsh nor rsync, because this machine has none."""
    found = make_lab(count=2, python=PYTHON)
    if found.hosts[0].exec(["test", "-e", "/usr/bin/python3.11"]).returncode != 0:
        pytest.skip("this machine is no Debian 12")
    allow_sudo(found)
    return found


def packages(host: LabHost) -> str:
    return output(host, "dpkg-query", "--show")


def python_findings(run_mnt: Callable[..., Any], lab: Lab) -> list[dict[str, Any]]:
    document = json.loads(run_mnt("preflight", "--only", "python-version", "--json", lab=lab).stdout)
    return [each for each in document["findings"] if each["check"] == "python-version"]


def test_a_host_without_python_gets_all(lab: Lab, run_mnt: Callable[..., Any]) -> None:
    bare, other = lab.hosts
    make_bare(bare, INTERPRETER)
    assert bare.exec(["sh", "-c", "command -v python3 || command -v python3.11"]).returncode != 0
    (finding,) = python_findings(run_mnt, lab)
    assert (finding["hosts"], finding["playbook"]) == (["node1"], "system")
    with serving(lab, debs=[*INTERPRETER, *LISTED]) as mirror:
        before = [packages(host) for host in lab.hosts], snapshot(bare, "/var/cache", "/etc", "/usr/bin")
        assert changed(setup(lab, "system", "--check", apt_mirror=mirror.apt)) == {"node1": 1, "node2": 1}
        assert (
            [packages(host) for host in lab.hosts],
            snapshot(bare, "/var/cache", "/etc", "/usr/bin"),
        ) == before

        assert changed(setup(lab, "system", apt_mirror=mirror.apt)) == {"node1": 1, "node2": 1}
        for host in lab.hosts:
            assert "ssh" in output(host, "pdsh", "-V")
            output(host, "rsync", "--version")
            output(host, "test", "-e", "/usr/include/libaio.h", "-a", "-x", "/sbin/mount.nfs")
            output(host, "cc", "--version")
        output(bare, PYTHON, "-m", "venv", "/tmp/new", user=True)
        output(bare, "/tmp/new/bin/pip", "--version", user=True)
        assert snapshot(other, "/var/tmp", "/var/cache/mnt-debs").count("\n") == 1  # only /var/tmp itself
        assert changed(setup(lab, "system", apt_mirror=mirror.apt)) == {"node1": 0, "node2": 0}
        assert python_findings(run_mnt, lab) == []


def test_packages_of_the_head(lab: Lab, tmp_path: Path) -> None:
    host, other = lab.hosts
    one = ("-n", "node1")
    setup(lab, "system", *one, "--check", debs=str(tmp_path))  # a check needs none
    said = problem(setup(lab, "system", *one, "--debs", str(tmp_path), ok=False))
    assert f"debs: {tmp_path}, a directory of the head, has no .deb file" in said
    with serving(lab, debs=LISTED) as mirror:
        assert changed(setup(lab, "system", *one, "--debs", str(mirror.debs))) == {"node1": 1}
        assert mirror.requests == []
    assert "ssh" in output(host, "pdsh", "-V")
    assert host.exec(["test", "-e", "/var/cache/mnt-debs"]).returncode == 1
    both = setup(lab, "system", ok=False)  # node2 has no way to a mirror; node1 needs none
    assert changed(both) == {"node1": 0, "node2": 0}
    assert both["hosts"]["node1"]["status"] == "ok"
    assert "Could not resolve" in problem(both, other.name) or "Unable to" in problem(both, other.name)


def test_what_fails_says_why_and_goes_on_later(lab: Lab) -> None:
    host = lab.hosts[0]
    one = ("-n", "node1")
    said = problem(setup(lab, "system", *one, ok=False, system_packages=unjudged("htop; reboot")))
    assert "system_packages: htop; reboot: names of packages, separated by commas" in said
    with serving(lab, debs=LISTED) as mirror:
        source = {"apt_mirror": mirror.apt, "apt_lock_seconds": "1"}
        said = problem(setup(lab, "system", *one, ok=False, system_packages="no-such-thing", **source))
        assert "Unable to locate package no-such-thing" in said
        assert packages(host) == packages(lab.hosts[1])  # nothing by halves

        locks = ["/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock"]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            host.command([PYTHON, "-c", HOLD, *locks]),
            env=host.environment(),
            stdin=pipe,
            stdout=pipe,
            text=True,
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            assert "Could not get lock" in problem(setup(lab, "system", *one, ok=False, **source))
            holder.communicate("")

        output(host, "mount", "-t", "tmpfs", "-o", "size=64k", "small", "/var/cache/apt/archives")
        assert "enough free space" in problem(setup(lab, "system", *one, ok=False, **source))
        output(host, "umount", "/var/cache/apt/archives")
        assert changed(setup(lab, "system", *one, **source)) == {"node1": 1}
        assert "ssh" in output(host, "pdsh", "-V")
