"""docs/guide.md, page by page and command by command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from test_quickstart import PASSWORD, TRAIN, make_strange
from walkthrough import Reader, commands

from mnt.lab.lab import Lab

pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")


@pytest.mark.train
@pytest.mark.skipif(not TRAIN.exists(), reason="no torch for the hosts: bash scripts/train-venv.sh")
def test_every_page(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    reader = Reader(tmp_path, make_strange(make_lab, bare=False))
    lines = commands("guide.md")
    consent = [("Write inventories/default.yaml", "")]
    answers = {lines[0]: consent, "mnt ssh-setup": [("Password of mnt", PASSWORD)]}
    for number, line in enumerate(lines):
        said = reader.types(line, answers.get(line, ()))
        # The first page comes before the logins: what is not known then is added after them.
        assert said.code == (1 if number == 0 else 0), f"$ {line}\n{said.text}"
        if line == "mnt ssh-setup":
            assert reader.types("mnt init --yes").code == 0
    assert "node1" in (tmp_path / "project" / "inventories" / "default.yaml").read_text()
