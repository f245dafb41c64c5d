"""The examples of docs/contributing.md: each patch applies to the tree as it is, and what it adds works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
PATCHES = dict(re.findall(r"^### (.+?)\n.*?^```diff\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
FILES = {
    "A fact": 3,
    "A check": 2,
    "An engine": 2,
    "A backend": 2,
    "A command": 2,
    "A lab fault": 3,
}
SHOWN = {  # what proves that it is there: words of `python`, and text that they print
    "A fact": ("-m pytest -q tests/unit/test_probe_system.py -k swappiness", "1 passed"),
    "A check": ("-m pytest -q tests/unit/test_checks_system.py -k swappiness", "1 passed"),
    "An engine": ("-m mnt launch --help", "plain"),
    "A backend": ("-m mnt launch --help", "noisy"),
    "A command": ("-m mnt hosts --help", "as one hostlist"),
    "A lab fault": ("-m pytest -q -m matrix --co tests/lab/test_fault_matrix.py", "nic-bare"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the patches change, and of what their tests need."""
    left_out = shutil.ignore_patterns("__pycache__", "train", ".*")
    for name in ("mnt", "tests", "setup.cfg"):
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, tmp_path / name, **({"ignore": left_out} if source.is_dir() else {}))
    return tmp_path


def test_the_page_has_an_example_of_each() -> None:
    assert PATCHES.keys() == FILES.keys() == SHOWN.keys()


def apply(tree: Path, name: str) -> None:
    command = ["git", "apply", "-C1", "-"]
    done = subprocess.run(command, cwd=tree, input=PATCHES[name], capture_output=True, text=True)
    advice = f"docs/contributing.md: change the example '{name}' so that it applies to the tree as it is"
    assert done.returncode == 0, f"{advice}\n{done.stderr}"


@pytest.mark.parametrize("name", FILES)
def test_an_example_works(tree: Path, name: str) -> None:
    if name == "A check":
        apply(tree, "A fact")  # that it judges
    apply(tree, name)
    assert len(re.findall(r"^\+\+\+ ", PATCHES[name], re.MULTILINE)) == FILES[name]
    words, text = SHOWN[name]
    environment = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "100"}
    command = [sys.executable, *words.split()]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert text in done.stdout
