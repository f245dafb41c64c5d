"""The mirrors for lab hosts: apt and pip of a host get their packages there, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import faults
import pytest
from mirror import make_bare, make_wheel, serving

from mnt.lab.lab import Lab, LabHost


def works(host: LabHost, *argv: str) -> str:
    done = host.exec(argv, timeout=None)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.matrix
def test_a_bare_host_gets_packages_from_the_head(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    lab = make_lab(count=1)
    (host,) = lab.hosts
    assert "make" in make_bare(host, ["make", "pdsh"])  # this machine has no pdsh: so a host has none
    assert host.exec(["which", "make"]).returncode == 1
    wheel = make_wheel(tmp_path, "first-of-all", "1.5", requires=["second"])
    with serving(lab, debs=["make", "pdsh"], wheels=[wheel, make_wheel(tmp_path, "second", "2")]) as mirror:
        faults.write_file(host, "/etc/apt/mirror.list", mirror.apt + "\n")
        only = ["-o", "Dir::Etc::sourcelist=mirror.list", "-o", "Dir::Etc::sourceparts=-"]
        works(host, "apt-get", *only, "update")
        works(host, "apt-get", *only, "--yes", "--no-install-recommends", "install", "make", "pdsh")
        assert works(host, "make", "--version").startswith("GNU Make")
        assert "ssh" in works(host, "pdsh", "-V")  # its libraries are there too
        works(host, "/usr/bin/python3", "-m", "venv", "/opt/venv")
        index = ["--index-url", mirror.pip, "--trusted-host", lab.spec.head_address]
        works(host, "/opt/venv/bin/pip", "install", *index, "first-of-all==1.5")
        look = "import first_of_all as f, second as s; print(f.__version__, s.__version__)"
        assert works(host, "/opt/venv/bin/python", "-c", look) == "1.5 2\n"
        assert {each.name for each in mirror.wheels.iterdir()} >= {wheel.name}
        assert list(mirror.debs.glob("pdsh_*.deb"))
        assert "/simple/second/" in mirror.requests
