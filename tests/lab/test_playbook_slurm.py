"""playbooks/slurm.yml: slurmctld, slurmd and munge for real, on hosts without systemd and control groups."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path

import faults
import pytest
from mirror import serving
from setups import allow_sudo, changed, output, problem, setup, snapshot, unjudged

from mnt.lab.lab import Lab, LabHost

pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")

pytestmark = pytest.mark.matrix  # tox -e playbooks
PACKAGES = ["munge", "slurmd", "slurm-client", "slurmctld"]
KEY = "/etc/munge/munge.key"
# What a lab host has instead of systemd and control groups.
PLUGINS = {
    "slurm_proctrack": "proctrack/linuxproc",
    "slurm_task_plugin": "task/none",
    "slurm_cgroup_plugin": "cgroup/v1",
}


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Two hosts without Slurm, whether this machine has it or not."""
    found = make_lab(count=2, python="/usr/bin/python3")
    allow_sudo(found)
    for host in found.hosts:
        if host.exec(["sh", "-c", "command -v apt-get"]).returncode != 0:
            pytest.skip("this machine is no Debian")
        output(host, "dpkg", "--purge", "--force-depends", *PACKAGES, "slurm-wlm")
        output(host, "rm", "-rf", "/etc/munge", "/etc/slurm")
        faults.write_file(host, "/etc/dpkg/dpkg.cfg.d/no-man", "path-exclude=/usr/share/man/*\n")
    return found


def make_gpus(lab: Lab, count: int) -> None:
    """Devices by the names of GPUs, and the inventory that has them."""
    for host in lab.hosts:
        for number in range(count):
            output(host, "mknod", "--mode=666", f"/dev/nvidia{number}", "c", "1", "3")
    text = lab.inventory_path.read_text()
    lab.inventory_path.write_text(text.replace("gpus: 0", f"gpus: {count}"))


def key_of(host: LabHost) -> bytes:
    return base64.b64decode(output(host, "base64", KEY))


def states(host: LabHost) -> list[str]:
    return output(host, "sinfo", "--noheader", "--Node", "--format", "%N %T %G").splitlines()


def srun(host: LabHost, *words: str) -> list[str]:
    """The lines that a job on both nodes prints, of the ordinary user."""
    argv = ["timeout", "60", "srun", "--nodes=2", "--chdir=/tmp", *words]
    return sorted(output(host, *argv, user=True).splitlines())


def test_jobs_run_on_two_hosts(lab: Lab) -> None:
    first, second = lab.hosts
    make_gpus(lab, 2)
    before = [snapshot(host, "/etc", "/usr/sbin") for host in lab.hosts]
    with serving(lab, debs=PACKAGES) as mirror:
        assert changed(setup(lab, "slurm", "--check", apt_mirror=mirror.apt)) == {"node1": 1, "node2": 1}
        assert [snapshot(host, "/etc", "/usr/sbin") for host in lab.hosts] == before
        setup(lab, "slurm", apt_mirror=mirror.apt, **PLUGINS)

    assert states(first) == ["node1 idle gpu:2", "node2 idle gpu:2"]
    script = 'echo "$(hostname) $(id -un) $CUDA_VISIBLE_DEVICES"'
    assert srun(first, "--gres=gpu:2", "sh", "-c", script) == ["node1 mnt 0,1", "node2 mnt 0,1"]
    assert srun(second, "hostname") == ["node1", "node2"]  # from any host

    assert second.exec(["sh", "-c", "command -v slurmctld"]).returncode != 0
    modes = {output(host, "stat", "-c", "%a %U:%G", KEY) for host in lab.hosts}
    assert modes == {"400 munge:munge\n"}
    assert key_of(first) == key_of(second)
    key_is_in_no_log(lab)
    assert changed(setup(lab, "slurm", **PLUGINS)) == {"node1": 0, "node2": 0}

    # Before there is a slurm.conf, a check says so. The user munge may have put links where root works.
    output(second, "sh", "-c", "mkdir /root/kept && mv /etc/slurm/* /root/kept")
    assert changed(setup(lab, "slurm", "--check", **PLUGINS))["node2"] > 0
    output(second, "sh", "-c", "mv /root/kept/* /etc/slurm")
    output(second, "sh", "-c", f"mv {KEY} /root/kept && touch /root/other && ln -s /root/other {KEY}")
    said = problem(setup(lab, "slurm", ok=False), "node2")
    assert f"{KEY} is no key: Too many levels of symbolic links" in said
    assert output(second, "stat", "-c", "%U", "/root/other") == "root\n"
    output(second, "sh", "-c", f"rm {KEY} && mv /root/kept/munge.key {KEY} && ln -s /root/linked {KEY}.new")

    # Another key on one host, and another configuration: the daemons are started again where they must be.
    output(second, "sh", "-c", f"cp {KEY} /root/key && head -c 128 /dev/urandom >{KEY}")
    setup(lab, "slurm", **PLUGINS, slurm_partition="gpus")
    assert second.exec(["test", "-e", "/root/linked"]).returncode == 1
    assert key_of(first) == key_of(second)
    assert srun(second, "--partition=gpus", "hostname") == ["node1", "node2"]


def key_is_in_no_log(lab: Lab) -> None:
    """Neither on the head nor in what the hosts log."""
    key = key_of(lab.hosts[0])
    logs = [path for path in Path(os.environ["HOME"]).rglob("*") if path.is_file()]
    assert [path for path in logs if path.suffix == ".log"]
    wanted = (key, base64.b64encode(key)[:40])
    assert [path for path in logs if any(each in path.read_bytes() for each in wanted)] == []
    text = base64.b64encode(key)[:40].decode()
    for host in lab.hosts:
        assert host.exec(["grep", "-rqF", text, "/var/log", "/home", "/tmp", "/root"]).returncode == 1


def test_a_host_of_another_slurm_stays_as_it_is(lab: Lab) -> None:
    host = lab.host("node2")
    output(host, "mkdir", "/etc/slurm")
    faults.write_file(host, "/etc/slurm/slurm.conf", "ClusterName=other\n")
    played = setup(lab, "slurm", ok=False)
    assert "this host belongs to a Slurm already" in problem(played, "node2")
    assert changed(played) == {"node1": 0, "node2": 0}
    assert output(host, "cat", "/etc/slurm/slurm.conf") == "ClusterName=other\n"


@pytest.mark.parametrize(
    ("words", "variables", "says"),
    [
        (["-n", "node2"], {}, "the controller node1 must be one of the hosts"),
        (
            [],
            {"slurm_srun_ports": unjudged("1\nPrologSlurmctld=/bin/x")},
            "slurm_srun_ports such as 61000-63999",
        ),
        ([], {"mnt_gpus": "4"}, "the inventory has 4 GPUs, and /dev has 0: load the driver"),
    ],
)
def test_wrong_input_changes_nothing(
    lab: Lab, words: list[str], variables: dict[str, str], says: str
) -> None:
    played = setup(lab, "slurm", *words, ok=False, **variables)
    host = words[-1] if words else "node1"
    assert says in problem(played, host)
    assert set(changed(played).values()) == {0}
