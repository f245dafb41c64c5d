"""probe/survey.py on this machine: environments that are made for the test, and mounts as text."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from mnt.facts.survey import Survey
from mnt.remote.probe import survey
from mnt.remote.probe.filesystems import parse_mounts

NAMES = ["torch", "deepspeed"]
EVE = 64999  # no such user here


def environment(
    directory: Path, packages: dict[str, str], *, conda: bool = False, python: str = "3.11.2"
) -> Path:
    """An environment as venv or conda make it, with a program that is no Python."""
    short = ".".join(python.split(".")[:2])
    site = directory / "lib" / f"python{short}" / "site-packages"
    site.mkdir(parents=True)
    for name, version in packages.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (directory / "bin").mkdir()
    program = directory / "bin" / "python"
    program.write_text(f"#!/bin/sh\ntouch {directory}/started\n")
    program.chmod(0o755)
    if conda:
        (directory / "conda-meta").mkdir()
        (directory / "conda-meta" / f"python-{python}-h123_0.json").write_text("{}")
    else:
        (directory / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {python}\n")
    return program


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(survey, "_PLACES", ())
    return tmp_path


def run(**args: object) -> Survey:
    answer = survey.main({"packages": NAMES, **args}, lambda frame: None, None)  # type: ignore[arg-type]
    return Survey.parse("here", answer)


def test_environments_are_found_and_not_started(home: Path) -> None:
    made = {
        environment(home / ".venv", {"torch": "2.13.0+cpu", "deepspeed": "0.19.8", "other": "1"}): "venv",
        environment(home / "venvs" / "old", {"torch": "2.9.1"}, python="3.9.1"): "venv",
        environment(home / "miniconda3", {}, conda=True): "conda",
        environment(home / "miniforge3" / "envs" / "train", {"torch": "2.13.0"}, conda=True): "conda",
    }
    found = {each.path: each for each in run().environments}
    assert {path: each.kind for path, each in found.items()} == {
        str(path): kind for path, kind in made.items()
    }
    assert found[f"{home}/.venv/bin/python"].packages == {"torch": "2.13.0+cpu", "deepspeed": "0.19.8"}
    assert found[f"{home}/venvs/old/bin/python"].version == "3.9.1"
    assert not list(home.rglob("started"))


def test_what_conda_has_listed(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "train"
    environment(elsewhere, {"torch": "2.13.0"}, conda=True, python="3.12.4")
    (home / ".conda").mkdir()
    (home / ".conda" / "environments.txt").write_text(f"{elsewhere}\n/nonexistent\nrelative\n\n")
    assert [(each.path, each.version) for each in run().environments] == [
        (f"{elsewhere}/bin/python", "3.12.4")
    ]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_what_another_user_could_have_written(home: Path) -> None:
    names = ("own", "theirs", "open", "packages", "linked")
    made = {name: environment(home / name, {"torch": "99.0"}) for name in names}
    os.chown(home / "theirs", EVE, EVE)
    (home / "open" / "bin").chmod(0o777)
    os.chown(next((home / "packages").glob("lib/*/site-packages")), EVE, EVE)
    made["linked"].unlink()
    made["linked"].symlink_to(made["theirs"])
    found = {each.path: each.exposed for each in run().environments}
    assert found.pop(str(made["own"])) is None
    assert found.pop(str(made["open"])) == f"all users can write to {home}/open/bin (mode 0777)"
    assert len(found) == 3
    assert all(f" belongs to uid {EVE}, not to " in (why or "") for why in found.values())


def test_what_is_no_environment(home: Path) -> None:
    (environment(home / "broken", {})).unlink()
    (home / "broken" / "bin" / "python").symlink_to("/nonexistent/python3")
    (environment(home / "plain", {}).parents[1] / "pyvenv.cfg").unlink()
    (home / "file").write_text("x")
    (home / "venvs").symlink_to(home)  # a circle
    assert run().environments == ()


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
tmpfs /run tmpfs rw 0 0
tmpfs /tmp tmpfs rw 0 0
/dev/sdb1 /data xfs rw,noatime 0 0
head:/export /shared nfs4 rw,vers=4.2 0 0
head:/home /home nfs rw 0 0
10.0.0.1@tcp:/scratch /scratch lustre ro,flock 0 0
proc /proc proc rw 0 0
me@x:/y /home/me/mnt fuse.sshfs rw 0 0
portal /run/user/1/doc fuse.portal rw 0 0
/dev/sdc1 /data ext4 rw 0 0
head:/usr /usr/local nfs4 ro 0 0
"""


def test_storage_that_hosts_could_share() -> None:
    found = {mount["point"]: mount["type"] for mount in survey.shareable(parse_mounts(MOUNTS))}
    assert found == {
        "/shared": "nfs4",
        "/home": "nfs",
        "/scratch": "lustre",
        "/home/me/mnt": "fuse.sshfs",
        "/data": "ext4",  # the one on top
        "/usr/local": "nfs4",
    }


def test_a_mount_that_no_program_can_open_is_no_storage() -> None:
    """Any user can mount there (FUSE): the answer of the host would be refused for it."""
    mounts = [
        {"point": "/data" + "/x" * count, "source": "a", "type": "fuse.sshfs", "options": ["rw"]}
        for count in (2, 2100)
    ]
    assert [mount["point"] for mount in survey.shareable(mounts)] == ["/data/x/x"]


def test_the_way_to_a_peer(home: Path) -> None:
    found = run(peers=["127.0.0.9", "::1", "255.255.255.255"])
    assert found.routes["127.0.0.9"] == "127.0.0.1"
    if socket.has_ipv6 and Path("/proc/net/if_inet6").exists():
        assert found.routes["::1"] in ("::1", None)
    assert found.routes["255.255.255.255"] is None


def test_what_another_user_has_mounted_is_no_storage() -> None:
    """On each host, with owners and modes that are that user's word; it may never answer."""
    options = "rw,nosuid,nodev,user_id={},group_id=0,allow_other"
    text = "".join(
        f"{source} {point} {kind} {options.format(uid)} 0 0\n"
        for source, point, kind, uid in (
            ("own@x:/", "/shared", "fuse.sshfs", os.getuid()),
            ("eve@x:/", "/home/eve/data", "fuse.sshfs", 64999),
            ("head:/y", "/data", "nfs4", 0),
            ("eve@x:/", "/data", "fuse.sshfs", 64999),
        )
    )
    assert [mount["point"] for mount in survey.shareable(parse_mounts(text))] == ["/shared"]
