"""docs/quickstart.md, command by command, from hosts with a password to a job and its results."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import configure_sshd, write_file
from mirror import serving
from walkthrough import ROOT, Reader, addresses, commands

from mnt.lab.lab import Lab, LabHost

pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")

MakeLab = Callable[..., Lab]
PASSWORD = "pass word$1"
TRAIN = Path("/var/cache/mnt/train-venv/bin/python")
PACKAGES = ("torch==2.13.0", "transformers==5.20.2")  # what train_fsdp.py needs


def train_wheels(directory: Path) -> list[Path]:
    """PACKAGES with all that they need, for the hosts' Python and without GPUs."""
    download = [str(TRAIN), "-m", "pip", "download", "--quiet", "--dest", str(directory)]
    constraints = ["--constraint", str(ROOT / "train" / "requirements.txt")]
    subprocess.run([*download, *PACKAGES, "pip", "setuptools", *constraints], check=True)
    return [*directory.glob("*.whl")]


def make_strange(make_lab: MakeLab, *, bare: bool) -> Lab:
    """Two hosts with a password, and nothing else that a login needs.

    Args:
        bare: they have no environment and no shared storage either.
    """
    lab = make_lab(count=2)
    for host in lab.hosts:
        _let_in(host, bare=bare)
    return lab


def _let_in(host: LabHost, *, bare: bool) -> None:
    script = "rm -rf /home/mnt/.ssh; chpasswd -c SHA256"
    script += "; umount /shared; mount -t tmpfs -o mode=755 none /var/cache/mnt" if bare else ""
    done = host.exec(["sh", "-c", script], input=f"mnt:{PASSWORD}\n")
    assert done.returncode == 0, done.stderr
    write_file(host, "/etc/sudoers.d/mnt", "mnt ALL=(ALL) ALL\n")
    configure_sshd(host, "PasswordAuthentication yes\n")


def walk(lab: Lab, place: Path, *, bare: bool, setup: str = "") -> Reader:
    reader = Reader(place, addresses(lab))
    lines = commands("quickstart.md")
    wanted = "init trust ssh-setup init preflight setup preflight push launch status logs fetch"
    assert " ".join(line.split()[1] for line in lines) == wanted
    consent = ("Write inventories/default.yaml", "y")
    answers = {
        lines[0]: [consent],
        "mnt ssh-setup": [("Password of mnt", PASSWORD)],
        "mnt setup -K": [("Run these?", "y"), ("Password for sudo", PASSWORD)] if bare else [],
        "mnt init": [consent],
    }
    fails = {0: "0 of 2 hosts answered", **({4: "mnt setup environment"} if bare else {})}
    for number, line in enumerate(lines):
        if number == 4 and setup:
            with reader.inventory.open("a") as inventory:
                inventory.write(setup)
        said = reader.types(line, answers.get(line, ()))
        assert said.code == (1 if number in fails else 0), f"$ {line}\n{said.text}"
        assert fails.get(number, "") in said.text, f"$ {line}\n{said.text}"
        if number == 6:
            assert "fit to train: 0 failed" in said.text
    return reader


def check_results(reader: Reader) -> None:
    (job,) = (place for place in (reader.project / "fetched").iterdir() if place.is_dir())
    assert sorted(host.name for host in job.iterdir()) == ["node1", "node2"]
    assert list(job.glob("node1/**/outputs/first/metrics.jsonl")), list(job.rglob("*"))


@pytest.mark.train
@pytest.mark.skipif(not TRAIN.exists(), reason="no torch for the hosts: bash scripts/train-venv.sh")
def test_hosts_that_have_an_environment(make_lab: MakeLab, tmp_path: Path) -> None:
    check_results(walk(make_strange(make_lab, bare=False), tmp_path, bare=False))


@pytest.mark.matrix
@pytest.mark.skipif(not TRAIN.exists(), reason="no pip of the hosts' Python: bash scripts/train-venv.sh")
def test_bare_hosts(make_lab: MakeLab, tmp_path: Path) -> None:
    """The whole of it: torch is installed on both hosts, from a mirror on the head."""
    lab = make_strange(make_lab, bare=True)
    with serving(lab, wheels=train_wheels(tmp_path / "wheels")) as mirror:
        setup = f"\nsetup:\n  pip_index: {mirror.pip}\n  environment_packages: {' '.join(PACKAGES)}\n"
        check_results(walk(lab, tmp_path, bare=True, setup=setup))
