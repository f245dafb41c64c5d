"""A planned job as scripts: what they say, and that `sh` reads them. tests/lab/test_backends.py runs them."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_plan import plan

from mnt.errors import UsageError
from mnt.inventory.model import Host, Ssh, Ulimit
from mnt.launch.backends import backend_named
from mnt.launch.export import START, files_of, write_files

HOSTS = (
    Host("node1", "10.0.0.1"),
    Host("node2", "[fe80::1]", ssh=Ssh(user="me", port=2222, identity="~/k y", config=None, gateway="b")),
)


def files(via: str = "ssh") -> dict[str, str]:
    planned = plan(args=("a b", "it's", "$x"), portable=True)
    return files_of(planned, HOSTS, backend_named(via).outside(planned), "/my job")


@pytest.mark.parametrize("via", ["ssh", "pdsh", "mpi"])
def test_each_is_a_script_that_sh_reads(via: str) -> None:
    found = files(via)
    assert [*found] == ["hostfile", "0-node1.sh", "1-node2.sh", START]
    assert found["hostfile"] == "node1 slots=8\nnode2 slots=4\n"
    for name in [*found][1:]:
        assert subprocess.run(["sh", "-n"], input=found[name], text=True, check=False).returncode == 0


def test_nothing_of_mnts_is_needed_on_the_nodes() -> None:
    for rank, name in enumerate(["0-node1.sh", "1-node2.sh"]):
        text = files()[name]
        assert f"--node-rank={rank}" in text
        assert "rdzv-backend" not in text
        assert "/tmp/mnt-" not in text  # a directory that mnt makes private


def test_a_login_is_as_the_inventory_says() -> None:
    text = files()[START]
    assert "ssh -o BatchMode=yes 10.0.0.1 sh -s <0-node1.sh &" in text
    assert "ssh -o BatchMode=yes -i '~/k y' -l me -J b -F none -p 2222 fe80::1 sh -s <1-node2.sh &" in text


def test_arguments_arrive_as_they_are(tmp_path: Path) -> None:
    text = files()["0-node1.sh"].replace("exec /opt/env/bin/python", "exec printf '<%s>'")
    lines = [line for line in text.splitlines() if not line.startswith("cd ")]
    done = subprocess.run(["sh", "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("<a b><it's><$$x>")


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    write_files(str(tmp_path / "new"), files())
    assert (tmp_path / "new" / START).stat().st_mode & 0o111
    before = {file.name: file.read_text() for file in (tmp_path / "new").iterdir()}
    with pytest.raises(UsageError, match="not empty"):
        write_files(str(tmp_path / "new"), {"hostfile": "x"})
    assert {file.name: file.read_text() for file in (tmp_path / "new").iterdir()} == before
    with pytest.raises(UsageError, match="File exists"):
        write_files(str(tmp_path / "new" / START), {})


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"activate": ("conda activate x",)}, "`activate`"),
        ({"ulimit": Ulimit(nofile=4096)}, "`ulimit`"),
        ({"python": ("ch-run", "/image", "--", "python")}, "a container"),
    ],
)
def test_what_no_script_can_have_is_refused(more: dict[str, Any], what: str) -> None:
    hosts = (HOSTS[0], replace(HOSTS[1], **more))
    with pytest.raises(UsageError, match=f"node2: the inventory has {what}"):
        files_of(plan(portable=True), hosts, None, "/job")
