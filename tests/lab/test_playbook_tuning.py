"""playbooks/tuning.yml, by `mnt setup` on hosts with small limits, a small /dev/shm, and GPUs that sleep."""

from __future__ import annotations

import json
import re
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faults
import pytest
import sessions
import setups

from mnt.lab.lab import Lab, LabHost, LabRequest, down

pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")

Mnt = Callable[..., subprocess.CompletedProcess[str]]
Setup = Callable[..., dict[str, Any]]

CHECKS = "memlock,nofile,shm,session-linger,gpu-persistence"
LIMITS = "/etc/security/limits.d/zz-mnt.conf"
LINGERS = "/var/lib/systemd/linger/mnt"
ASLEEP = "/etc/gpus-asleep"
NEIGHBOURS = "/etc/neighbours"  # of the kernel, which has them in no namespace

# What this machine allows its hosts: as root of a sandbox it may not raise its own limits (CAP_SYS_RESOURCE).
_UNLIMITED = bool(int(re.findall(r"CapBnd:\s*(\w+)", Path("/proc/self/status").read_text())[0], 16) & 1 << 24)
NOFILE = "1048576" if _UNLIMITED else str(min(1 << 20, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
MEMLOCK = "unlimited" if _UNLIMITED else str(resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] // 1024)

_RECORDED = Path(__file__).parents[1] / "data" / "nvidia-smi" / "query-gpu.txt"
_NVIDIA_SMI = """#!/bin/sh
mode=Enabled
[ ! -e {asleep} ] || mode=Disabled
case "$*" in
    "-pm 1") rm -f {asleep};;
    *=persistence_mode*) printf '%s\\n%s\\n' $mode $mode;;
    --query-gpu=*) cat <<END
{gpus}END
    ;;
    *) exit 3;;
esac
"""
_LSPCI = """#!/bin/sh
cat <<'END'
00:01.0 PCI bridge: one
	Capabilities: [220 v1] Access Control Services
		ACSCtl:	SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-

00:02.0 PCI bridge: two
	Capabilities: [220 v1] Access Control Services
		ACSCtl:	SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
END
"""


@pytest.fixture(scope="module")
def hosts(lab_support: None) -> Iterator[Lab]:
    """Two hosts: on node1 PAM sets the limits, on node2 sshd itself."""
    name = sessions.new_name()
    try:
        lab = Lab.up(LabRequest(name=name, count=2), python="/usr/bin/python3")
        for host in lab.hosts:
            make_small(host)
        one, two = lab.hosts
        faults.write_file(one, "/etc/security/limits.d/site.conf", "* soft nofile 512\n* soft memlock 64\n")
        faults.configure_sshd(one, "UsePAM yes\n")
        faults.stop_sshd(two)
        must(two, "sh", "-c", "ulimit -Sn 512; ulimit -Sl 64; exec /usr/sbin/sshd")
        yield lab
    finally:
        down(name)


def make_small(host: LabHost) -> None:
    faults.write_file(host, "/etc/sudoers.d/mnt", "mnt ALL=(ALL) NOPASSWD: ALL\n")
    must(host, "mount", "-o", "remount,size=32m", "/dev/shm")
    must(host, "mkdir", "-p", "/etc/systemd/logind.conf.d")
    faults.write_file(host, "/etc/systemd/logind.conf.d/site.conf", "[Login]\nRemoveIPC=yes\n")
    rows = _RECORDED.read_text().splitlines(keepends=True)[1:-1]
    gpus = "".join(row.replace("MiB, Enabled,", "MiB, $mode,") for row in rows)
    for tool, text in {
        "nvidia-smi": _NVIDIA_SMI.format(asleep=ASLEEP, gpus=gpus),
        "lspci": _LSPCI,
    }.items():
        faults.write_file(host, f"/usr/local/bin/{tool}", text)
        must(host, "chmod", "+x", f"/usr/local/bin/{tool}")
    faults.write_file(host, ASLEEP, "")
    must(host, "mkdir", NEIGHBOURS)
    for number, size in enumerate((128, 512, 1024), start=1):
        faults.write_file(host, f"{NEIGHBOURS}/gc_thresh{number}", f"{size}\n")


def must(host: LabHost, *argv: str) -> str:
    done = host.exec(list(argv))
    assert done.returncode == 0, f"{argv}: {done.stderr}"
    return done.stdout


@pytest.fixture
def setup(hosts: Lab) -> Setup:
    """`setup("--check", nofile=..)`: what `mnt setup tuning` did on each host; `said` is Ansible's output."""

    def run(*words: str, ok: bool = True, **variables: str) -> dict[str, Any]:
        found: dict[str, Any] = setups.setup(hosts, "tuning", *words, ok=ok, **variables)["hosts"]
        return found

    return run


def findings(run_mnt: Mnt, lab: Lab) -> dict[str, dict[str, Any]]:
    done = run_mnt("preflight", "--only", CHECKS, "--mode", "rdma", "--json", lab=lab)
    return {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}


def state(host: LabHost) -> str:
    """All that the playbook may write to."""
    files = f"/etc/fstab /etc/sysctl.d/* {NEIGHBOURS}/* {ASLEEP} {LIMITS} {LINGERS}"
    return must(host, "sh", "-c", f"md5sum {files} 2>&1; df -k --output=size /dev/shm; ls /etc/security/*")


@pytest.mark.matrix  # tox -e playbooks
def test_it_brings_what_preflight_asks_for(hosts: Lab, run_mnt: Mnt, setup: Setup) -> None:
    found = findings(run_mnt, hosts)
    assert {*found} == {*CHECKS.split(",")}
    assert all(each["hosts"] == ["node1", "node2"] for each in found.values()), found
    by_outside = set() if _UNLIMITED else {"memlock"}  # as in a container: no playbook can raise it
    assert {check for check, each in found.items() if each["playbook"] == "tuning"} == {*found} - by_outside

    wanted = {"nofile": NOFILE, "memlock": MEMLOCK, "cluster_size": "2000", "neighbour_settings": NEIGHBOURS}
    before = [state(host) for host in hosts.hosts]
    shown = setup("--check", **wanted)
    assert all(host["changed"] > 0 for host in shown.values()), shown
    assert [state(host) for host in hosts.hosts] == before

    for said in setup(**wanted).values():
        (report,) = said["reports"]
        assert report.startswith("ACS is on at PCIe bridges: 00:02.0. ")
    for host in hosts.hosts:
        assert f"mnt - nofile {NOFILE}\n" in must(host, "cat", LIMITS)
        assert must(host, "cat", LINGERS) == ""
        (line,) = [line for line in must(host, "cat", "/etc/fstab").splitlines() if "/dev/shm" in line]
        assert line == "tmpfs /dev/shm tmpfs nosuid,nodev,mode=1777,size=50% 0 0"
        assert host.exec(["test", "-e", ASLEEP]).returncode == 1
        sizes = must(host, "sh", "-c", f"cat {NEIGHBOURS}/* /etc/sysctl.d/90-mnt-neighbours.conf")
        assert [line.split()[-1] for line in sizes.splitlines() if not line.startswith("#")] == [
            *("1024", "2048", "4096"),
            *("4096", "2048", "1024"),
        ]
    limits = run_mnt("run", "--", "ulimit -n", lab=hosts)
    assert limits.stdout.count(NOFILE) == 2, limits
    left = findings(run_mnt, hosts)
    assert {*left} == (set() if _UNLIMITED else {"memlock"})
    if not _UNLIMITED:
        assert left["memlock"]["found"] == f"{MEMLOCK} KiB"

    # What has got lost on one host comes back, and nothing else is touched.
    must(hosts.host("node2"), "mount", "-o", "remount,size=32m", "/dev/shm")
    again = setup(**wanted)
    assert [host["changed"] for host in again.values()] == [0, 1]
    assert {*findings(run_mnt, hosts)} == {*left}


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"nofile": setups.unjudged("many")}, "nofile and cluster_size are numbers"),
        ({"shm_size": setups.unjudged("50%,mode=777")}, "shm_size is a part of the memory"),
        (
            {"nofile": "2000000000", "memlock": MEMLOCK},
            f"nofile can be at most {NOFILE} files (",
        ),
        ({"login_user": "nemo"}, "there is no user nemo here: correct login_user"),
    ],
)
def test_wrong_variables_change_nothing(
    hosts: Lab, setup: Setup, variables: dict[str, str], says: str
) -> None:
    before = state(hosts.host("node1"))
    (host,) = setup("-n", "node1", ok=False, **variables).values()
    assert says in host["problem"]
    assert host["changed"] == 0
    assert state(hosts.host("node1")) == before
