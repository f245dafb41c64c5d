"""A host that lies to a playbook: what it says reaches no other host, and no other file of the head."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faults
import pytest
from images import docker_archive
from mirror import make_wheel
from setups import allow_sudo, changed, output, problem, setup

from mnt.lab.lab import Lab, LabHost

pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")

pytestmark = pytest.mark.matrix  # tox -e playbooks
PLACE = "/home/mnt/own/train"
# Ansible's modules come on standard input: those that match a pattern get an answer that was made up.
LYING_PYTHON = """#!/bin/bash
if [ $# = 0 ]; then
  file=$(mktemp /tmp/module.XXXXXX)
  cat > $file
  if grep -aqE -f /srv/match $file; then cat /srv/answer; else /usr/bin/python3.honest < $file; fi
  code=$?
  rm -f $file
  exit $code
fi
exec -a "$0" /usr/bin/python3.honest "$@"
"""
REPLACE = """cp $(readlink -f /usr/bin/python3) /usr/bin/python3.honest
for name in $(ls /usr/bin | grep -E '^python3([.][0-9]+)?$'); do
  rm /usr/bin/$name
  cp /srv/python /usr/bin/$name
done
"""
# The program of environment.yml gets an answer that was made up, which tells of the versions in it.
LYING_LOOK = """#!/bin/sh
case "$1,$3" in
-c,look) cat >/dev/null; echo 'mnt-environment: ANSWER'; exit 0;;
-c,build) cat >/dev/null; echo 'mnt-environment: {"changed": true, "id": "x"}'; exit 0;;
esac
exec /usr/bin/python3 "$@"
"""


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by ansible-playbook with its own settings: a fact may have the name of an inventory's variable."""
    monkeypatch.setenv("ANSIBLE_INJECT_FACT_VARS", "true")


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    lab = make_lab(count=2, python="/usr/bin/python3")
    allow_sudo(lab)
    return lab


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    place = tmp_path / "wheels"
    place.mkdir()
    make_wheel(place, "torch", "2.7.1")
    make_wheel(place, "evil", "1.0")
    return place


def lie(host: LabHost, match: str, **answer: Any) -> None:
    """A module whose source matches answers as chosen."""
    faults.write_file(host, "/srv/match", match)
    faults.write_file(host, "/srv/answer", json.dumps({"changed": False, **answer}) + "\n")
    faults.write_file(host, "/srv/python", LYING_PYTHON)
    output(host, "sh", "-ec", "chmod 755 /srv/python;" + REPLACE)


def lie_of_versions(host: LabHost, *lock: str) -> None:
    """It says that it has an environment with such versions."""
    said = {"path": PLACE, "python": f"{PLACE}/bin/python", "root": False, "request": ["torch"]}
    said |= {"complete": True, "shared": False, "ops_shared": False, "lock": lock}
    faults.write_file(host, "/usr/local/bin/python3", LYING_LOOK.replace("ANSWER", json.dumps(said)))
    output(host, "chmod", "755", "/usr/local/bin/python3")


def make(lab: Lab, wheels: Path, *, ok: bool = False, **variables: str) -> dict[str, Any]:
    usual = {"environment_path": PLACE, "environment_packages": "torch"}
    return setup(lab, "environment", "--wheelhouse", str(wheels), ok=ok, **{**usual, **variables})


def installed(host: LabHost) -> str:
    return output(host, "sh", "-c", f"ls -d {PLACE}/lib/python*/site-packages/*/", user=True)


def test_a_host_chooses_no_packages_of_others(lab: Lab, wheels: Path, tmp_path: Path) -> None:
    first, second = lab.hosts
    lock = tmp_path / "lock.json"
    if first.exec(["/usr/bin/python3", "-c", "import ensurepip"]).returncode != 0:
        pytest.skip("no python3-venv")
    for line, says in (
        (f"evil @ http://{second.spec.management}:8000/evil-1.0-py3-none-any.whl", "is no line of a lock"),
        ("evil==1.0", "is not on this host"),
    ):
        lie_of_versions(second, line)
        played = make(lab, wheels, environment_lock=str(lock))
        assert says in problem(played, "node2")
        assert played["hosts"]["node1"]["problem"] is None
        assert json.loads(lock.read_text()) == {"request": ["torch"], "lock": ["torch==2.7.1"]}
        assert "torch" in installed(first)
        assert "evil" not in installed(first)

    # The first host chooses the versions, but only of what the requirements need.
    output(second, "rm", "/usr/local/bin/python3")
    output(second, "rm", "-rf", PLACE, f"{PLACE}.builds")
    lock.unlink()
    lie_of_versions(first, "evil==1.0", "torch==2.7.1")
    played = make(lab, wheels, environment_lock=str(lock))
    assert "nothing here needs evil==1.0" in problem(played, "node2")
    assert second.exec(["ls", PLACE]).returncode != 0


def test_a_host_names_no_file_of_the_head(lab: Lab, wheels: Path, tmp_path: Path) -> None:
    victim = tmp_path / "state" / "victim" / "package.lock.json"
    victim.parent.mkdir(parents=True)
    victim.write_text('{"name": "victim", "token": "precious"}')
    output(lab.hosts[0], "install", "-d", "-o", "mnt", "/var/tmp/w")
    facts = {"mnt_cluster": "../../victim/package", "environment_lock": str(victim)}
    lie(lab.hosts[0], "modules[.]tempfile", path="/var/tmp/w", ansible_facts=facts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        make(lab, wheels, ok=True)
    assert victim.read_text() == '{"name": "victim", "token": "precious"}'
    kept = list((tmp_path / "state" / "mnt" / "setup").glob("*.lock.json"))
    assert [json.loads(file.read_text())["lock"] for file in kept] == [["torch==2.7.1"]]


@pytest.mark.parametrize("name", ["../x", ".", "a/b"])
def test_the_name_of_the_cluster_is_that_of_a_file(lab: Lab, wheels: Path, name: str) -> None:
    played = make(lab, wheels, mnt_cluster=name)
    assert "the name of the cluster is that of the lock file" in problem(played)
    assert set(changed(played).values()) == {0}


SLURMD = """#!/bin/sh
case $1 in
-C) echo 'NodeName=x CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=1000';;
-V) echo slurm-wlm 22.05.8;;
esac
"""
EVIL = "node2\nProlog=/shared/of-node2.sh\nPrologFlags=Alloc\n#"


USERS = """chmod 755 /usr/bin/slurmd /etc/init.d/*
mkdir -p /etc/munge /etc/slurm
touch /etc/munge/munge.key
for name in slurm munge; do
  echo "$name:x:99${#name}:99${#name}::/:/bin/false" >>/etc/passwd
  echo "$name:x:99${#name}:" >>/etc/group
done
"""


def make_slurm(host: LabHost) -> None:
    """What slurm.yml looks at in a check."""
    faults.write_file(host, "/usr/bin/slurmd", SLURMD)
    for daemon in ("munge", "slurmd", "slurmctld"):
        faults.write_file(host, f"/etc/init.d/{daemon}", "#!/bin/sh\n")
    output(host, "sh", "-ec", USERS)


@pytest.mark.parametrize(
    ("match", "answer", "says"),
    [
        ("modules[.]find", {"matched": 0, "ansible_facts": {"hostname": EVIL, "mnt_address": EVIL}}, None),
        ("modules[.]setup", {"ansible_facts": {"hostname": EVIL}}, "a host name of its own"),
        ("modules[.]setup", {"ansible_facts": {"hostname": "node2\n"}}, "a host name of its own"),
        (
            "slurmd.*-C",
            {"rc": 0, "stdout": "CPUs=1 Prolog=1 ThreadsPerCore=1 RealMemory=9"},
            "describes a node",
        ),
    ],
)
def test_a_host_writes_no_line_of_slurm_conf(
    lab: Lab, tmp_path: Path, match: str, answer: dict[str, Any], says: str | None
) -> None:
    for host in lab.hosts:
        make_slurm(host)
    lie(lab.hosts[1], match, **answer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path))
        played = setup(lab, "slurm", "--check", ok=says is None)  # there is no slurm.conf yet
    log = next((tmp_path / "mnt" / "setup").glob("*slurm.log")).read_text()
    if says is None:
        assert "\n+NodeName=node2 NodeHostname=node2 NodeAddr=" in log
        assert "\n+Prolog" not in log
    else:
        assert says in problem(played, "node2")
        assert "\n+NodeName" not in log


PODMAN = """#!/bin/sh
case "$*" in
"image inspect "*) echo IMAGE;;
esac
"""


@pytest.mark.parametrize("place", ["head", "storage"])
def test_a_host_decides_for_no_other_which_image_is_right(make_lab: Any, tmp_path: Path, place: str) -> None:
    lab = make_lab(count=3, python="/usr/bin/python3")
    allow_sudo(lab)
    archive = tmp_path / "image.tar"
    (tmp_path / "layer").write_text("not looked at")
    image = docker_archive(archive, tmp_path / "layer")
    said = {"node1": "0" * 64, "node2": image, "node3": image}
    for host in lab.hosts:
        faults.write_file(host, "/usr/local/bin/podman", PODMAN.replace("IMAGE", said[host.name]))
        output(host, "chmod", "755", "/usr/local/bin/podman")
    if place == "storage":
        text = base64.b64encode(archive.read_bytes()).decode()
        output(lab.hosts[0], "sh", "-c", f"echo {text} | base64 -d >/shared/image.tar")
        archive = Path("/shared/image.tar")
    played = setup(lab, "container", ok=False, runtime="podman", image=os.fspath(archive))
    assert [played["hosts"][name]["problem"] for name in ("node2", "node3")] == [None, None]
    assert "this host has the image 000000000000, and not that of the" in problem(played, "node1")
    assert image[:12] in problem(played, "node1")


@pytest.mark.parametrize("checksum", ["0" * 64, "{{ x }}", None])
def test_a_host_decides_for_no_other_which_archive_is_right(make_lab: Any, checksum: str | None) -> None:
    """The first one: it sees another file on the shared storage, or says so."""
    lab = make_lab(count=3, python="/usr/bin/python3")
    allow_sudo(lab)
    for host in lab.hosts:
        faults.write_file(host, "/usr/local/bin/ch-run", "#!/bin/sh\n")
        output(host, "chmod", "755", "/usr/local/bin/ch-run")
    pack = "mkdir -p /srv/image/bin; touch /srv/image/bin/x; tar -czf /shared/image.tar.gz -C /srv/image bin"
    output(lab.hosts[0], "sh", "-ec", pack)
    lie(lab.hosts[0], "modules[.]stat", stat={"exists": True, "checksum": checksum, "size": 1})
    played = setup(lab, "container", ok=False, runtime="charliecloud", image="/shared/image.tar.gz")
    assert [played["hosts"][name]["problem"] for name in ("node2", "node3")] == [None, None]
    says = "another file here than on more than half" if checksum == "0" * 64 else "no file that can be read"
    assert says in problem(played, "node1")
    assert "x" in output(lab.hosts[1], "ls", "/opt/mnt/images/image/bin").split()
