"""playbooks/container.yml: Debian's podman and Charliecloud; Apptainer is a program that looks at a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import faults
import pytest
from images import WORDS, docker_archive, root_file_system
from mirror import serving
from setups import allow_sudo, changed, output, problem, setup, unjudged

from mnt.lab.lab import Lab

pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")

pytestmark = pytest.mark.matrix  # tox -e playbooks
APPTAINER = """#!/bin/sh
case "$1 $2" in
"sif header") grep -q ^SIF "$3" || { echo "FATAL: no SIF" >&2; exit 1; } ;;
pull\\ *) echo "SIF: $3 pulled by $(id -un)" >"$2" ;;
*) exit 2 ;;
esac
"""
EVIL = """
mkdir -p /var/tmp/outside /tmp/evil/bin /tmp/evil/etc && cd /tmp/evil
cp /bin/dash bin/rootsh && chmod 4755 bin/rootsh && mkfifo pipe
echo 'print(1)' >train.py && chmod 666 train.py
ln -s /var/tmp/outside/touched etc/resolv.conf
ln -s /var/tmp/outside mnt
tar --owner=0 --group=0 -czf /shared/evil.tar.gz .
"""


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    if not Path("/bin/busybox").exists():
        pytest.skip("this machine has no busybox to make an image of")
    found = make_lab(count=2, python="/usr/bin/python3")
    allow_sudo(found)
    return found


def test_charliecloud_has_one_image_everywhere(lab: Lab, tmp_path: Path) -> None:
    image = root_file_system(tmp_path / "tiny.tar")
    options = {"runtime": "charliecloud", "image": str(image)}
    run = ("ch-run", "/opt/mnt/images/tiny", "--", "/bin/cat", "/etc/which")
    with serving(lab, debs=["charliecloud-runtime"]) as mirror:
        checked = setup(lab, "container", "--check", apt_mirror=mirror.apt, **options)
        assert all(changed(checked).values())
        assert lab.hosts[0].exec(["sh", "-c", "command -v ch-run || ls /opt/mnt"]).returncode != 0
        setup(lab, "container", apt_mirror=mirror.apt, **options)
    assert [output(host, *run, user=True) for host in lab.hosts] == [WORDS] * 2
    assert changed(setup(lab, "container", **options)) == {"node1": 0, "node2": 0}

    root_file_system(image, "another image\n")  # those that run keep the old one
    old = output(lab.hosts[0], "readlink", "-f", "/opt/mnt/images/tiny").strip()
    setup(lab, "container", **options)
    assert [output(host, *run, user=True) for host in lab.hosts] == ["another image\n"] * 2
    assert output(lab.hosts[0], "cat", f"{old}/etc/which") == WORDS
    image.write_bytes(b"no archive at all")
    assert "tar" in problem(setup(lab, "container", ok=False, **options))
    assert output(lab.hosts[0], *run, user=True) == "another image\n"
    assert lab.hosts[0].exec(["sh", "-c", "ls -d /var/tmp/mnt-image-*"]).returncode != 0


def test_an_image_that_a_node_has_made_gives_nobody_root(lab: Lab) -> None:
    """Root of node1 unpacks what the account of node2 has put on the shared storage."""
    one, two = lab.hosts
    for host in lab.hosts:
        faults.write_file(host, "/usr/local/bin/ch-run", "#!/bin/sh\n")
        output(host, "chmod", "755", "/usr/local/bin/ch-run")
    output(one, "mkdir", "/var/tmp/outside")
    output(two, "sh", "-ec", EVIL, user=True)
    played = setup(lab, "container", "-n", "node1", runtime="charliecloud", image="/shared/evil.tar.gz")
    assert changed(played)["node1"] > 0
    look = 'find "$1/" ! -type l \\( -perm /7022 -o ! -uid 0 -o ! -type d ! -type f \\)'
    assert output(one, "sh", "-c", look, "sh", "/opt/mnt/images/evil") == ""
    assert "uid=0" not in output(one, "/opt/mnt/images/evil/bin/rootsh", "-p", "-c", "id", user=True)
    assert output(one, "ls", "-A", "/var/tmp/outside") == ""

    # Where root is not alone, the user unpacks it, and where another user was first, nobody.
    there = {"runtime": "charliecloud", "image": "/shared/evil.tar.gz"}
    output(one, "sh", "-c", "mkdir -m 777 /srv/open; chmod +t /srv/open; install -d -o 1 -g 1 /srv/open/of-1")
    setup(lab, "container", "-n", "node1", image_directory="/home/mnt/images", **there)
    assert (
        output(one, "stat", "-L", "-c", "%U", "/home/mnt/images/evil", "/home/mnt/images/evil/bin/rootsh")
        == "mnt\nmnt\n"
    )
    said = problem(
        setup(lab, "container", "-n", "node1", ok=False, image_directory="/srv/open/of-1", **there)
    )
    assert "/srv/open/of-1 belongs to" in said


def test_podman_loads_it_for_the_user(lab: Lab, tmp_path: Path) -> None:
    one = ("-n", "node1")
    image = docker_archive(tmp_path / "image.tar", root_file_system(tmp_path / "layer.tar"))
    options = {"runtime": "podman", "image": str(tmp_path / "image.tar")}
    with serving(lab, debs=["podman", "uidmap", "slirp4netns"]) as mirror:
        setup(lab, "container", *one, apt_mirror=mirror.apt, **options)
    host = lab.hosts[0]
    listed = output(host, "podman", "images", "--no-trunc", "--format", "{{.ID}} {{.Repository}}", user=True)
    assert f"sha256:{image} localhost/tiny" in listed
    assert "mnt:" in output(host, "cat", "/etc/subuid")
    assert changed(setup(lab, "container", *one, **options)) == {"node1": 0}
    (tmp_path / "image.tar").write_text("no archive at all")
    said = problem(setup(lab, "container", *one, ok=False, **options))
    assert f"{tmp_path}/image.tar is no archive of an image" in said


def test_apptainer_gets_a_file_that_it_can_read(lab: Lab, tmp_path: Path) -> None:
    for host in lab.hosts:
        faults.write_file(host, "/usr/local/bin/apptainer", APPTAINER)
        output(host, "chmod", "755", "/usr/local/bin/apptainer")
    image = tmp_path / "train.sif"
    image.write_text("half a file")
    said = problem(setup(lab, "container", ok=False, image=str(image)))
    assert "FATAL: no SIF" in said
    place = "/opt/mnt/images/train.sif"
    assert lab.hosts[0].exec(["test", "-e", place]).returncode == 1
    image.write_text("SIF: a whole one")
    assert changed(setup(lab, "container", image=str(image))) == {"node1": 1, "node2": 1}
    assert [output(host, "cat", place, user=True) for host in lab.hosts] == ["SIF: a whole one"] * 2
    assert changed(setup(lab, "container", image=str(image))) == {"node1": 0, "node2": 0}
    faults.write_file(lab.hosts[0], "/shared/one.sif", "SIF: on shared storage", user=True)
    assert changed(setup(lab, "container", image="/shared/one.sif")) == {"node1": 0, "node2": 0}

    digest = f"docker.io/x/y@sha256:{'0' * 64}"
    assert changed(setup(lab, "container", image=digest)) == {"node1": 1, "node2": 1}
    pulled = output(lab.hosts[0], "cat", f"/opt/mnt/images/y-{'0' * 12}.sif", user=True)
    assert pulled == f"SIF: docker://{digest} pulled by mnt\n"  # root unpacks no image
    assert changed(setup(lab, "container", image=digest)) == {"node1": 0, "node2": 0}


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"image": unjudged("")}, "image is the whole path of a file of the head, or a reference"),
        (
            {"image": "/srv/x.sif", "runtime": unjudged("docker")},
            "runtime is apptainer, podman or charliecloud",
        ),
        ({"image": unjudged("/srv/x.sif; reboot")}, "image is the whole path of a file"),
        (
            {"image": "/srv/x.sif", "runtime": "podman"},
            "/srv/x.sif is no file for podman: a .tar of podman save",
        ),
        ({"image": "docker.io/library/debian:12"}, "a tag may mean another image on each host"),
    ],
)
def test_what_cannot_be_done(lab: Lab, variables: dict[str, str], says: str) -> None:
    played = setup(lab, "container", "-n", "node1", ok=False, **variables)
    assert says in problem(played)
    assert changed(played) == {"node1": 0}
