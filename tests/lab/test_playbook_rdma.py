"""playbooks/rdma.yml, on hosts without the packages, whose kernel has some of the modules."""

from __future__ import annotations

from collections.abc import Callable

import faults
import pytest
from mirror import serving
from setups import allow_sudo, changed, output, problem, setup, snapshot, unjudged

from mnt.lab.lab import Lab, LabHost

pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")

pytestmark = pytest.mark.matrix  # tox -e playbooks
PACKAGES = ["ibverbs-providers", "ibverbs-utils", "librdmacm1", "rdma-core", "perftest", "infiniband-diags"]
AT_BOOT = "/etc/modules-load.d/mnt-rdma.conf"
# A kernel that has two of the modules. What a lab's root really loaded would be in this machine's kernel.
_MODPROBE = """#!/bin/sh
case $* in
    *--dry-run*broken) ;;
    broken) echo "modprobe: ERROR: could not insert 'broken': Invalid argument" >&2; exit 1;;
    "--dry-run --quiet ib_uverbs" | "--dry-run --quiet rdma_ucm") ;;
    --dry-run*) exit 1;;
    *) mkdir "/sys/module/$1";;
esac
"""


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    found = make_lab(count=2, python="/usr/bin/python3")
    if found.hosts[0].exec(["test", "-e", "/usr/bin/python3.11"]).returncode != 0:
        pytest.skip("this machine is no Debian 12")
    allow_sudo(found)
    for host in found.hosts:
        faults.write_file(host, "/usr/local/sbin/modprobe", _MODPROBE)
        output(host, "chmod", "+x", "/usr/local/sbin/modprobe")
        output(host, "mount", "-t", "tmpfs", "modules", "/sys/module")
    return found


def state(host: LabHost) -> str:
    return output(host, "dpkg-query", "--show") + snapshot(host, "/etc/modules-load.d", "/sys/module")


def test_libraries_tools_and_modules(lab: Lab) -> None:
    with serving(lab, debs=PACKAGES) as mirror:
        before = [state(host) for host in lab.hosts]
        assert changed(setup(lab, "rdma", "--check", apt_mirror=mirror.apt)) == {"node1": 2, "node2": 2}
        assert [state(host) for host in lab.hosts] == before

        played = setup(lab, "rdma", apt_mirror=mirror.apt)
        assert changed(played) == {"node1": 2, "node2": 2}
        assert played["hosts"]["node1"]["reports"] == ["the kernel shows no RDMA device"]
        for host in lab.hosts:
            for tool in ("ibv_devinfo", "ib_write_bw", "ibstat", "rdma-ndd"):
                output(host, "sh", "-c", 'PATH=$PATH:/usr/sbin; command -v "$1"', "sh", tool)
            assert output(host, "ls", "/sys/module").split() == ["ib_uverbs", "rdma_ucm"]
            assert output(host, "cat", AT_BOOT).splitlines()[1:] == ["ib_uverbs", "rdma_ucm"]

        output(lab.host("node2"), "rmdir", "/sys/module/rdma_ucm")  # as after a boot
        assert changed(setup(lab, "rdma", apt_mirror=mirror.apt)) == {"node1": 0, "node2": 1}


def test_what_fails_says_why(lab: Lab) -> None:
    words = ("-n", "node1")
    modules = {"rdma_packages": "false"}
    shown = setup(lab, "rdma", *words, ok=False, rdma_modules=unjudged("ib_uverbs;reboot"), **modules)
    assert "rdma_modules are names of modules, separated by commas" in problem(shown)
    shown = setup(lab, "rdma", *words, ok=False, rdma_modules="ib_uverbs,broken", **modules)
    assert "modprobe broken: modprobe: ERROR: could not insert 'broken': Invalid argument" in problem(shown)
    assert lab.hosts[0].exec(["test", "-e", AT_BOOT]).returncode == 1
