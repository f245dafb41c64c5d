"""playbooks/environment.yml: on shared storage once, elsewhere on each host; the packages are small ones."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import faults
import pytest
from mirror import make_wheel, serving
from setups import allow_sudo, changed, output, problem, setup, snapshot, unjudged

from mnt.lab.lab import Lab, LabHost

pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")

pytestmark = pytest.mark.matrix  # tox -e playbooks
SHARED = "/shared/train"
HOME = "/home/mnt/own/train"
VERSIONS = "import torch as a, deepspeed as b, transformers as c; print(*(m.__version__ for m in (a, b, c)))"


@pytest.fixture
def make(make_lab: Callable[..., Lab]) -> Callable[[str], Lab]:
    """Two hosts whose inventory names an interpreter that does not exist."""

    def with_python(place: str) -> Lab:
        lab = make_lab(count=2, python=f"{place}/bin/python")
        if lab.hosts[0].exec(["/usr/bin/python3", "-c", "import ensurepip"]).returncode != 0:
            pytest.skip("no python3-venv")
        allow_sudo(lab)
        return lab

    return with_python


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Packages of the names in mnt[train], which are not of their size."""
    place = tmp_path / "wheels"
    place.mkdir()
    make_wheel(place, "torch", "2.7.1")
    make_wheel(place, "deepspeed", "0.17.0", requires=["torch"])
    make_wheel(place, "transformers", "4.50.0", requires=["tokens>=1"])
    make_wheel(place, "tokens", "1.1")
    return place


def versions(host: LabHost, place: str) -> str:
    return output(host, f"{place}/bin/python", "-c", VERSIONS, user=True).strip()


def findings(run_mnt: Callable[..., Any], lab: Lab) -> list[tuple[str, str]]:
    only = "python-version,torch-version,deepspeed-version,transformers-version,package-version"
    document = json.loads(run_mnt("preflight", "--only", only, "--json", lab=lab).stdout)
    return [(each["check"], each["playbook"]) for each in document["findings"]]


@pytest.mark.parametrize("how", ["environment", "builds", "parent"])
def test_another_user_is_first_at_the_place(make: Any, how: str) -> None:
    """In a directory like /tmp: nothing of eve is run, and nothing is built where she can write."""
    place = "/scratch/train" if how != "parent" else "/scratch/own/train"
    lab = make(place)
    host = lab.hosts[0]
    output(host, "install", "-d", "-m", "1777", "/scratch")
    build = f"{place}.builds/20260101000000-0123abcd"
    request = ["deepspeed>=0.16,<1", "torch>=2.6,<3", "transformers>=4.48,<6"]
    marker = json.dumps({"id": "x", "python": "3.11", "request": request, "lock": ["torch==2.7.1"]})
    script = {
        "environment": f"""mkdir -p {build}/bin; echo '{marker}' >{build}/mnt-environment.json
            printf '#!/bin/sh\\nid -u >>/tmp/ran; chmod 666 /tmp/ran; echo {{}}\\n' >{build}/bin/python
            chmod 755 {build}/bin/python; ln -s {build} {place}""",
        "builds": f"mkdir -m 755 {place}.builds",
        "parent": f"mkdir -m 755 {place.rpartition('/')[0]}",
    }[how]
    output(host, "setpriv", "--reuid=64999", "--regid=64999", "--clear-groups", "sh", "-c", script)
    before = output(host, "find", "/scratch", "-ls")
    for options in (["--check"], []):
        played = setup(lab, "environment", "-n", "node1", *options, ok=False, pip_index="http://127.0.0.1:9/")
        assert " belongs to uid 64999: " in problem(played)
    assert host.exec(["test", "!", "-e", "/tmp/ran"]).returncode == 0
    assert output(host, "find", "/scratch", "-ls") == before


def test_shared_storage_gets_it_once(make: Any, wheels: Path, run_mnt: Callable[..., Any]) -> None:
    lab = make(SHARED)
    assert ("python-version", "environment") in findings(run_mnt, lab)
    with serving(lab, wheels=sorted(wheels.iterdir())) as mirror:
        assert changed(setup(lab, "environment", "--check", pip_index=mirror.pip)) == {"node1": 1, "node2": 0}
        assert output(lab.hosts[0], "ls", "-A", "/shared") == ""

        # What an earlier run left behind that was cut off: its lock, whose owner is gone, and half a build.
        half = f"{SHARED}.builds/20200101000000-0123abcd"
        output(lab.hosts[0], "mkdir", "-p", f"{half}/bin", f"{SHARED}.builds/lock", user=True)
        owner = json.dumps({"host": "node1", "pid": 4000000})
        faults.write_file(lab.hosts[0], f"{SHARED}.builds/lock/owner", owner, user=True)

        assert changed(setup(lab, "environment", pip_index=mirror.pip)) == {"node1": 1, "node2": 0}
        assert len([path for path in mirror.requests if path.endswith(".whl")]) == 4  # each once
        assert [versions(host, SHARED) for host in lab.hosts] == ["2.7.1 0.17.0 4.50.0"] * 2
        assert lab.hosts[0].exec(["test", "-e", half]).returncode == 1
        assert changed(setup(lab, "environment", pip_index=mirror.pip)) == {"node1": 0, "node2": 0}
        assert findings(run_mnt, lab) == []

        # Somebody changes it by hand; then node2 does not see the storage.
        output(lab.hosts[1], f"{SHARED}/bin/python", "-m", "pip", "uninstall", "--yes", "tokens", user=True)
        assert changed(setup(lab, "environment", pip_index=mirror.pip)) == {"node1": 1, "node2": 0}
        assert "1.1" in output(lab.hosts[1], f"{SHARED}/bin/pip", "show", "tokens", user=True)
        with faults.no_shared(lab.hosts[1]):
            said = problem(setup(lab, "environment", ok=False, pip_index=mirror.pip), "node2")
        assert "nothing is mounted at /shared, which `storage` in the inventory names" in said


def test_each_host_gets_the_same_versions(make: Any, wheels: Path) -> None:
    lab = make(HOME)
    only = "torch>=2.6,<3 deepspeed transformers"
    words = ("environment", "--wheelhouse", str(wheels))
    assert changed(setup(lab, *words, "-n", "node1", environment_packages=only)) == {"node1": 1}
    make_wheel(wheels, "torch", "2.8.0")
    assert changed(setup(lab, *words, environment_packages=only)) == {"node1": 0, "node2": 1}
    assert [versions(host, HOME) for host in lab.hosts] == ["2.7.1 0.17.0 4.50.0"] * 2  # the lock file's
    first = output(lab.hosts[0], "readlink", HOME)
    newer = setup(lab, *words, environment_packages=only, environment_upgrade="true")
    assert changed(newer) == {"node1": 1, "node2": 1}
    assert [versions(host, HOME) for host in lab.hosts] == ["2.8.0 0.17.0 4.50.0"] * 2
    output(
        lab.hosts[0], f"/home/mnt/own/{first.strip()}/bin/python", "-c", "import torch"
    )  # for jobs that run
    assert lab.hosts[0].exec(["sh", "-c", "ls -d /var/tmp/mnt-wheels-*"]).returncode != 0


def test_no_private_key_of_the_head_is_sent_as_a_wheel(make: Any, wheels: Path, tmp_path: Path) -> None:
    """Git keeps links: a directory of wheels in somebody's tree may have one to a key of yours."""
    lab = make(HOME)
    (tmp_path / "id_ed25519").write_text("the private key")
    (wheels / "torch-2.7.0-py3-none-any.whl").symlink_to("../id_ed25519")
    words = ("environment", "-n", "node1", "--wheelhouse", str(wheels))
    before = snapshot(lab.hosts[0], "/var/tmp", "/home/mnt/own")
    for options in ([], ["--check"]):
        said = problem(setup(lab, *words, *options, ok=False))
        assert "torch-2.7.0-py3-none-any.whl is a link, and no link is sent to hosts" in said
    assert snapshot(lab.hosts[0], "/var/tmp", "/home/mnt/own") == before
    # Nor is what has another name: a job may read what is there.
    (wheels / "torch-2.7.0-py3-none-any.whl").unlink()
    (wheels / "notes").symlink_to("../id_ed25519")
    assert changed(setup(lab, *words)) == {"node1": 1}


def test_a_disk_that_fills_leaves_nothing_by_halves(make: Any, wheels: Path) -> None:
    lab = make("/opt/train")
    host = lab.hosts[0]
    words = ("environment", "-n", "node1", "--wheelhouse", str(wheels))
    output(host, "mount", "-t", "tmpfs", "-o", "size=4m,mode=755", "small", "/opt")
    said = problem(setup(lab, *words, ok=False))
    assert "no space left on device: /opt/train.builds has " in said
    assert snapshot(host, "/opt/train").strip() == ""
    assert output(host, "ls", "/opt/train.builds") == ""
    output(host, "mount", "-o", "remount,size=200m", "/opt")
    assert changed(setup(lab, *words)) == {"node1": 1}
    assert versions(host, "/opt/train") == "2.7.1 0.17.0 4.50.0"
    assert output(host, "stat", "--format", "%U", "/opt/train/") == "root\n"  # the user cannot write to /opt


BACKEND = """
import zipfile
def build_wheel(directory, settings=None, metadata=None):
    name, info = "train_ops-1.0-py3-none-any.whl", "train_ops-1.0.dist-info/"
    with zipfile.ZipFile(directory + "/" + name, "w") as wheel:
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: train-ops\\nVersion: 1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""


def make_source(directory: Path) -> Path:
    """A package whose build needs another one from the index, as DeepSpeed's: pip starts a pip for that."""
    file = directory / "train_ops-1.0.tar.gz"
    texts = {
        "pyproject.toml": '[build-system]\nrequires = ["tokens"]\nbuild-backend = "b"\nbackend-path=["."]\n',
        "b.py": BACKEND,
        "PKG-INFO": "Metadata-Version: 2.1\nName: train-ops\nVersion: 1.0\n",
    }
    with tarfile.open(file, "w:gz") as archive:
        for name, text in texts.items():
            entry = tarfile.TarInfo(f"train_ops-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return file


@contextmanager
def command_lines() -> Iterator[set[str]]:
    """Those of all processes of the head and of its lab hosts, meanwhile."""
    found: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.005):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                with suppress(OSError):
                    found.add(Path("/proc", pid, "cmdline").read_bytes().decode(errors="replace"))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def test_the_password_of_the_index_is_in_no_command_line(
    make: Any, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    lab = make(HOME)
    files = [*wheels.iterdir(), make_source(tmp_path)]
    inventory = tmp_path / "inventory.yaml"
    with serving(lab, wheels=files, account="eve:T0K%EN") as mirror:
        text = f"{lab.inventory_path.read_text()}\nsetup: {{pip_index: '{mirror.pip.replace('%', '%25')}'}}\n"
        inventory.write_text(text)
        with command_lines() as lines:
            played = setup(inventory, "environment", environment_packages="torch train-ops", use_uv="false")
            failed = setup(
                inventory,
                "environment",
                "-n",
                "node1",
                ok=False,
                environment_packages="not-there",
                use_uv="false",
            )
    assert changed(played) == {"node1": 1, "node2": 1}
    assert "No matching distribution found for not-there" in problem(failed)
    asked = [line for line in lines if "/simple/" in line]
    assert any("tokens" in line for line in asked), "no pip of pip's was seen"
    assert [line for line in lines if re.search("T0K|VDBL", line)] == []  # VDBL: in base64
    logs = (tmp_path / "state" / "mnt" / "setup").glob("*.log")
    assert "T0K" not in json.dumps([played, failed]) + "".join(log.read_text() for log in logs)
    assert lab.hosts[0].exec(["sh", "-c", "ls /tmp/mnt-netrc-*"]).returncode != 0


@pytest.mark.parametrize(
    ("python", "variables", "says"),
    [
        ("/usr", {}, "/usr exists, and was not made by this playbook; set environment_path to a new place"),
        ("/srv/e", {"environment_packages": "torch;reboot"}, "'torch;reboot' is no requirement such as"),
        ("/srv/e", {"environment_python": "python9"}, "has no python9 (python9 not found); install it"),
        ("/srv/e", {"use_uv": unjudged("yes please")}, "use_uv is auto, true or false"),
        ("/srv/e", {"environment_packages": "no-such-thing-at-all"}, "No matching distribution found"),
    ],
)
def test_what_cannot_be_done(
    make: Any, wheels: Path, python: str, variables: dict[str, str], says: str
) -> None:
    lab = make(python)
    played = setup(lab, "environment", "-n", "node1", "--wheelhouse", str(wheels), ok=False, **variables)
    assert says in problem(played)
    assert changed(played) == {"node1": 0}
    assert lab.hosts[0].exec(["test", "-e", "/srv/e"]).returncode == 1
