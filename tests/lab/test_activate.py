"""`activate`: a stand-in for conda, and Debian's environment-modules, from preflight to the job."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sessions
import yaml
from faults import write_file
from launches import nothing_is_left

from mnt.lab.lab import Lab, LabRequest, down

RunMnt = Callable[..., subprocess.CompletedProcess[str]]

# As conda's own: a function of the shell, and a prefix in PATH.
CONDA = """
conda() {
    [ "$1" = activate ] || return 2
    [ -d "/shared/envs/$2" ] || { echo "EnvironmentNameNotFound: Could not find $2" >&2; return 1; }
    export CONDA_PREFIX=/shared/envs/$2 PATH=/shared/envs/$2/bin:$PATH
}
"""
MODULE = """#%Module
prepend-path PATH /shared/envs/train/bin
setenv TRAIN_MODULE loaded
"""
MEET = """
import os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("met", dist.get_rank(), os.environ.get("CONDA_PREFIX"), os.environ.get("TRAIN_MODULE"), flush=True)
sys.stdout.flush()
os._exit(0)  # see train/lm/worker.py
"""
CONDA_LINES = ["source /shared/conda.sh", "conda activate train"]
MODULE_LINES = "module use /shared/modulefiles && module load train"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    name = sessions.new_name()
    try:
        lab = Lab.up(LabRequest(name=name, count=2))
        python = yaml.safe_load(lab.inventory_path.read_text())["defaults"]["python"]
        host = lab.hosts[0]
        write_file(host, "/shared/conda.sh", CONDA, user=True)
        made = host.exec(["mkdir", "/shared/modulefiles", "/shared/envs"], user=True)
        assert made.returncode == 0, made.stderr
        write_file(host, "/shared/modulefiles/train", MODULE, user=True)
        made = host.exec(["ln", "-s", str(Path(python).parent.parent), "/shared/envs/train"], user=True)
        assert made.returncode == 0, made.stderr
        yield lab
    finally:
        down(name)


@pytest.fixture
def changed(lab: Lab, run_mnt: RunMnt, tmp_path: Path) -> Callable[..., RunMnt]:
    """`changed(activate=.., node2={..})`: mnt with other settings of all hosts, or of node2."""

    def change(node2: dict[str, Any] | None = None, **settings: Any) -> RunMnt:
        written = yaml.safe_load(lab.inventory_path.read_text())
        written["defaults"] |= {"python": "python", **settings}
        written["hosts"]["node2"] = {**(written["hosts"]["node2"] or {}), **(node2 or {})}
        for key in ("identity", "known_hosts"):
            if key in written.get("ssh", {}):
                written["ssh"][key] = str(lab.inventory_path.parent / written["ssh"][key])
        file = tmp_path / "changed.yaml"
        file.write_text(yaml.safe_dump(written, sort_keys=False))
        (tmp_path / "tree").mkdir(exist_ok=True)
        (tmp_path / "tree/meet.py").write_text(MEET)
        assert run_mnt("push", "-i", str(file), str(tmp_path / "tree")).returncode == 0

        def run(command: str, *args: str) -> subprocess.CompletedProcess[str]:
            return run_mnt(command, "-i", str(file), *args)

        return run

    return change


@pytest.mark.parametrize(
    ("activate", "says"), [(CONDA_LINES, "/shared/envs/train None"), (MODULE_LINES, "None loaded")]
)
def test_a_bare_name_is_found_by_the_environment_that_is_made(
    changed: Callable[..., RunMnt], lab: Lab, activate: Any, says: str
) -> None:
    if "module" in activate and not Path("/etc/profile.d/modules.sh").exists():
        pytest.skip("this machine has no environment-modules")
    mnt = changed(activate=activate)
    checked = mnt("preflight", "--only", "python-version,torch-version", "--json")
    assert checked.returncode == 0, checked.stdout
    done = mnt("launch", "meet.py")
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"met {rank} {says}" in done.stdout
    nothing_is_left(lab)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "conda activate gone",
            "'conda activate gone' failed with code 1: EnvironmentNameNotFound: Could not find",
        ),
        pytest.param("sleep 300", "'sleep 300' has not ended after 20 s", marks=pytest.mark.matrix),
    ],
)
def test_a_line_that_fails_on_one_node_is_refused_by_its_name(
    changed: Callable[..., RunMnt], lab: Lab, line: str, says: str
) -> None:
    mnt = changed(activate=CONDA_LINES, node2={"activate": [CONDA_LINES[0], line]})
    checked = mnt("launch", "meet.py")
    assert checked.returncode == 125
    assert f"node2: the environment of jobs: activate: {says}" in checked.stderr
    done = mnt("launch", "--no-preflight", "meet.py")
    assert done.returncode == 125
    assert re.search(rf"node2\b.*: activate: {re.escape(says)}", done.stderr), done.stderr
    assert not re.search(r"node1\b.*: activate: ", done.stderr)
    nothing_is_left(lab)
    assert lab.hosts[1].exec(["pgrep", "-f", "sleep 300"]).returncode == 1
