"""playbooks/tasks/packages.sh where it cannot be run for real: on Rocky, and on what it does not know.

tests/lab/test_playbook_system.py runs it with apt-get. Here dnf and rpm only write down what they are asked;
and root unpacks what another user of the head has packed.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "playbooks" / "tasks" / "packages.sh"
TOOLS = ["awk", "cat", "chmod", "cut", "date", "grep", "head", "mktemp", "paste", "rm", "sed", "tail", "tr"]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH with a few tools, and without apt-get."""
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    return tmp_path


def program(machine: Path, name: str, text: str) -> None:
    (machine / name).write_text(f"#!/bin/sh\n{text}\n")
    (machine / name).chmod(0o755)


def run(machine: Path, word: str, *, names: str = "pdsh make") -> tuple[int, str]:
    environment = {"PATH": str(machine), "MNT_DEBIAN": "none", "MNT_REDHAT": names, "MNT_LOCK": "1"}
    done = subprocess.run(["/bin/sh", SCRIPT, word], env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout


def rocky(machine: Path, *, installs: bool = True) -> Path:
    """dnf and rpm, whose database is a directory; dnf's arguments are in a file."""
    have = machine / "have"
    have.mkdir()
    (have / "make").touch()
    program(machine, "rpm", f'for name; do :; done; [ -e "{have}/$name" ]')
    install = (
        f'for name; do : >"{have}/$name"; done'
        if installs
        else "echo 'Error: Unable to find a match: pdsh'; exit 1"
    )
    program(machine, "dnf", f'echo "$@" >>"{machine}/asked"; {install}')
    return machine / "asked"


def test_what_is_missing_on_rocky(machine: Path) -> None:
    rocky(machine)
    assert run(machine, "missing") == (0, "mnt-missing: pdsh\n")


def test_only_that_is_installed_and_epel_before_pdsh(machine: Path) -> None:
    asked = rocky(machine)
    assert run(machine, "install") == (0, "mnt-done\n")
    assert asked.read_text() == (
        "--assumeyes install epel-release\n--assumeyes --setopt=install_weak_deps=False install pdsh\n"
    )
    assert run(machine, "missing") == (0, "mnt-missing:\n")
    assert run(machine, "install") == (0, "mnt-done\n")
    assert len(asked.read_text().splitlines()) == 2


def test_what_dnf_says(machine: Path) -> None:
    rocky(machine, installs=False)
    assert run(machine, "install") == (1, "mnt-error: Error: Unable to find a match: pdsh\n")


def test_another_distribution(machine: Path) -> None:
    said = "mnt-error: this host has neither apt-get nor dnf: it is no Debian, Ubuntu or Rocky\n"
    assert run(machine, "missing") == (1, said)


# --- apt-get, for real, in a root directory of its own ------------------------------------------------------

APT = """
Dir "{root}"; Dir::State::status "{root}/var/lib/dpkg/status"; Dir::Bin::methods "/usr/lib/apt/methods";
APT::Sandbox::User "root"; DPkg::Options {{ "--root={root}"; }}
"""


@pytest.fixture
def debian(tmp_path: Path) -> dict[str, str]:
    """The environment for a host that has the package `sshd`, and gets `tools`, which conflicts with it."""
    root = tmp_path / "root"
    for place in (
        "etc/apt/apt.conf.d",
        "etc/apt/preferences.d",
        "var/lib/dpkg/updates",
        "var/lib/dpkg/info",
        "var/cache/apt",
        "debs",
    ):
        (root / place).mkdir(parents=True)
    for file in ("status", "available"):
        (root / "var/lib/dpkg" / file).touch()
    (tmp_path / "apt.conf").write_text(APT.format(root=root))
    for name, more in (("sshd", ""), ("tools", "Conflicts: sshd\n")):
        tree = tmp_path / name / "DEBIAN"
        tree.mkdir(parents=True)
        text = f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: x <x@y>\nDescription: x\n{more}"
        (tree / "control").write_text(text)
        subprocess.run(["dpkg-deb", "--build", tree.parent, root / "debs"], check=True, capture_output=True)
    environment = {
        **os.environ,
        "APT_CONFIG": str(tmp_path / "apt.conf"),
        "DPKG_ROOT": str(root),
        "DPKG_ADMINDIR": str(root / "var/lib/dpkg"),
        "MNT_DEBIAN": "tools",
        "MNT_LOCK": "1",
        "MNT_DEBS": str(root / "debs"),
    }
    install = ["dpkg", f"--root={root}", "--install", root / "debs" / "sshd_1_all.deb"]
    subprocess.run(install, check=True, capture_output=True, env=environment)
    return environment


@pytest.mark.skipif(not shutil.which("apt-get") or os.getuid() != 0, reason="needs apt-get, and root")
@pytest.mark.parametrize("broken", [False, True])
def test_nothing_is_removed_to_make_room(debian: dict[str, str], broken: bool) -> None:
    """Neither by the installation nor by what completes an earlier one."""
    if broken:
        unpack = ["dpkg", f"--root={debian['DPKG_ROOT']}", "--unpack", "--force-conflicts"]
        subprocess.run([*unpack, f"{debian['MNT_DEBS']}/tools_1_all.deb"], env=debian, check=True)
    done = subprocess.run(["/bin/sh", SCRIPT, "install"], env=debian, capture_output=True, text=True)
    listed = subprocess.run(["dpkg-query", "--show"], env=debian, capture_output=True, text=True)
    assert "sshd\t1\n" in listed.stdout
    assert done.returncode == 1
    assert "E: Packages need to be removed but remove is disabled: " in done.stdout


# --- .deb files of the head ---------------------------------------------------------------------------------

UID = 1000  # of who packs, and of somebody else on a host

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def debs(tmp_path: Path) -> Path:
    """A directory of the head, of an ordinary user."""
    directory = tmp_path / "debs"
    directory.mkdir()
    for name, mode in (("a.deb", 0o664), ("b.deb", 0o6777)):
        (directory / name).write_text(name)
        os.chown(directory / name, UID, UID)
        (directory / name).chmod(mode)
    return directory


def pack(debs: Path) -> Path:
    """The script that unpacks them on a host."""
    archive = debs.with_name("archive")
    subprocess.run(["/bin/sh", SCRIPT, "pack", debs, archive], check=True)
    return archive


def unpack(archive: Path) -> dict[str, tuple[int, int, str]]:
    """Owner and mode of the directory, and of all in it, where a run that was cut off has left one."""
    place = archive.with_name("mnt-debs")
    place.mkdir()
    os.chown(place, UID, UID)
    done = subprocess.run(["/bin/sh", archive, place], capture_output=True, text=True, umask=0)
    assert done.stdout == "mnt-done\n", done
    found = {path.name: path.lstat() for path in (place, *place.iterdir())}
    return {name: (each.st_uid, each.st_gid, stat.filemode(each.st_mode)) for name, each in found.items()}


@needs_root
def test_packages_of_the_head_are_roots_on_a_host(debs: Path) -> None:
    files = dict.fromkeys(("a.deb", "b.deb"), (0, 0, "-rw-r--r--"))
    assert unpack(pack(debs)) == {"mnt-debs": (0, 0, "drwxr-xr-x"), **files}


@needs_root
def test_they_are_so_whatever_the_archive_says(debs: Path) -> None:
    archive = pack(debs)
    script = archive.read_bytes().partition(b"\nexit 1\n")[:2]
    with archive.open("wb") as file:
        file.write(b"".join(script))
        with tarfile.open(fileobj=file, mode="w|", dereference=True) as tar:
            for deb in debs.iterdir():
                tar.add(deb, deb.name)
    assert unpack(archive) == {
        "mnt-debs": (0, 0, "drwxr-xr-x"),
        "a.deb": (0, 0, "-rw-r--r--"),
        "b.deb": (0, 0, "-rwxr-xr-x"),
    }


@needs_root
def test_what_a_link_leads_to_is_not_packed(debs: Path) -> None:
    """One that came after head_files.py had looked."""
    secret = debs.with_name("id_ed25519")
    secret.write_text("the private key")
    (debs / "c.deb").symlink_to(secret)
    assert b"the private key" not in pack(debs).read_bytes()
