"""The files of a lab host, and the lab's inventory."""

from __future__ import annotations

from pathlib import Path

import pytest

from mnt.inventory import loader
from mnt.lab import files, spec
from mnt.lab.spec import LabRequest

HIDDEN = ("/dev", "/home", "/proc", "/run", "/tmp", "/etc/hosts")


def lab(**request: object) -> spec.LabSpec:
    return spec.plan(
        LabRequest(**request),  # type: ignore[arg-type]
        token="0123abcd",
        subnet="10.213.0.0/22",
        uid=2_100_000_000,
        python="/opt/venv/bin/python",
    )


def mounts(*points: str) -> str:
    return "".join(f"/dev/x {point} ext4 rw 0 0\n" for point in points)


def test_mounts_below_the_root_are_bound_once_and_all_protected() -> None:
    text = mounts("/", "/srv", "/srv/data", "/srv/data/deep", "/boot", "/srv")
    binds, everything = files.bind_mounts(text, HIDDEN)
    assert binds == [("rbind", "/srv"), ("rbind", "/boot")]
    assert everything == ["/srv", "/srv/data", "/srv/data/deep", "/boot"]


def test_what_a_host_has_for_itself_is_not_bound() -> None:
    text = mounts("/", "/proc", "/dev/shm", "/home", "/home/alice/nfs", "/etc/hosts", "/tmp/x", "/runtime")
    assert files.bind_mounts(text, HIDDEN) == ([("rbind", "/runtime")], ["/runtime"])


def test_mount_points_with_spaces() -> None:
    assert files.bind_mounts(mounts("/", r"/srv/my\040disk"), HIDDEN)[0] == [("rbind", "/srv/my disk")]


@pytest.mark.parametrize(
    "name",
    [
        r"x\012/home",  # as the kernel shows a newline
        "x\r/home",
        "x\x0b",
        "x\x0c/home",
        "x\x1c",
        "x\x85/home",
        "x\u2028/home",
        "x\x1b[2J",
        r"x\011",
        b"x\xff".decode(errors="surrogateescape"),
    ],
)
def test_a_mount_point_that_is_no_line_of_text_is_left_out(name: str) -> None:
    """Each line of `binds` is a mount point: another user's FUSE mount must not add one."""
    text = mounts(
        "/", "/boot", f"/opt/{name}", f"/opt/{name}/deep", "/data", f"/data/{name}", "/data/a", "/x"
    )
    binds, everything = files.bind_mounts(text, HIDDEN)
    assert binds == [("rbind", "/boot"), ("bind", "/data"), ("rbind", "/data/a"), ("rbind", "/x")]
    assert everything == ["/boot", "/data", "/data/a", "/x"]


@pytest.mark.parametrize("kind", ["fuse", "fuse.bindfs", "fuseblk", "fuse.x\ry", r"fuse.x\012y"])
def test_what_another_user_has_mounted_is_left_out(kind: str) -> None:
    fuse = f"x /srv/u/m {kind} rw,nosuid,nodev,user_id=1000,group_id=1000,allow_other 0 0\n"
    text = mounts("/", "/srv", "/srv/a", "/srv/a/b") + fuse + mounts("/srv/u/m/below", "/boot")
    binds, everything = files.bind_mounts(text, HIDDEN)
    assert binds == [("bind", "/srv"), ("rbind", "/srv/a"), ("rbind", "/boot")]
    assert everything == ["/srv", "/srv/a", "/srv/a/b", "/boot"]


def test_what_is_below_or_beneath_a_mount_of_another_user_is_left_out() -> None:
    fuse = "x /opt/u fuse rw,user_id=1000 0 0\n"
    for text in (mounts("/opt/u", "/opt/u/data") + fuse, fuse + mounts("/opt/u", "/opt/u/data")):
        assert files.bind_mounts(text, HIDDEN) == ([], [])


def test_what_root_has_mounted_by_fuse_is_seen() -> None:
    text = "disk /data fuseblk rw,user_id=0,group_id=0,allow_other 0 0\n"
    assert files.bind_mounts(text, HIDDEN) == ([("rbind", "/data")], ["/data"])


def test_a_hosts_own_directories_that_a_mount_would_hide() -> None:
    own = ("/var/log", "/home", "/var/cache/mnt/torch_extensions")
    assert files.covered(own, ["/srv", "/boot"]) == []
    assert files.covered(own, ["/var", "/srv"]) == ["/var/log", "/var/cache/mnt/torch_extensions"]
    assert files.covered(own, ["/var/cache/mnt"]) == ["/var/cache/mnt/torch_extensions"]
    assert files.covered(own, ["/var/lo", "/var/log"]) == []


def test_the_user_is_added_to_the_machines_and_replaces_one_of_that_name() -> None:
    machine = "root:x:0:0:root:/root:/bin/bash\nmnt:x:1234:1234::/srv:/bin/false\nmntx:x:5:5::/:/bin/sh\n"
    lines = files.passwd(machine, 2_100_000_000).splitlines()
    assert [line.split(":")[0] for line in lines] == ["root", "mntx", "mnt"]
    assert lines[-1].split(":")[2] == "2100000000"


def test_names_resolve_to_management_addresses() -> None:
    text = files.etc_hosts(lab(count=2))
    assert "10.213.0.11 node1\n10.213.0.12 node2\n" in text
    assert "127.0.1.1" not in text


def test_a_lab_with_gpus_trains_on_them(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(files.inventory(lab(count=2, gpus=3), str(tmp_path), "/var/cache/mnt"))
    first, second = loader.load(path).hosts
    assert (first.gpus, first.env) == (2, {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0,1"})
    assert (second.gpus, second.env) == (1, {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "2"})


def test_the_inventory_is_one_that_mnt_loads(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(files.inventory(lab(name="odd-1", count=3), str(tmp_path), "/var/cache/mnt"))
    loaded = loader.load(path)
    assert loaded.cluster == "odd-1"
    assert [(host.name, host.address) for host in loaded.hosts] == [
        ("node1", "10.213.0.11"),
        ("node2", "10.213.0.12"),
        ("node3", "10.213.0.13"),
    ]
    host = loaded.hosts[0]
    assert (host.ssh.user, host.ssh.config) == ("mnt", None)
    assert host.ssh.identity == str(tmp_path / "identity")
    assert host.python == ("/opt/venv/bin/python",)
    assert host.env == {
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": "/var/cache/mnt/torch_extensions",
        "ACCELERATE_USE_CPU": "true",
    }
    assert (loaded.network.mode, loaded.network.subnet) == ("tcp", "10.213.2.0/23")
    assert [(mount.path, mount.type, mount.source) for mount in loaded.storage] == [
        ("/shared", "tmpfs", "mnt-lab-odd-1")
    ]
