"""Fix texts have one style: an imperative sentence, or a command to paste (mnt/errors.py)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from fix_style import complaint


@pytest.mark.parametrize(
    "fix",
    [
        "set `nic` of node1 in the inventory",
        "sudo modprobe nvidia_peermem",
        "/shared/env/bin/python -m pip install torch==2.13.0",
        "on head, set rw for /export in /etc/exports; then: sudo exportfs -ra",
        "if the host was reinstalled: ssh-keygen -f ~/.ssh/known_hosts -R node1",
    ],
)
def test_fixes_in_style(fix: str) -> None:
    assert complaint(fix) is None


@pytest.mark.parametrize(
    ("fix", "reason"),
    [
        ("is it on?", "says '?'"),
        ("you may want to install torch", "says 'you'"),
        ("Set the NIC", "begins with 'Set': neither an imperative nor a command"),
        ("install torch.", "has a full stop"),
        ("nothing now", "begins with 'nothing': neither an imperative nor a command"),
        ("see what holds it", "says 'see'"),
    ],
)
def test_fixes_out_of_style(fix: str, reason: str) -> None:
    assert complaint(fix) == reason


MNT = Path(__file__).parents[2] / "mnt"
OF_SETUP = [
    MNT / "cli" / "init.py",
    MNT / "cli" / "setup.py",
    *MNT.glob("init/*.py"),
    *MNT.glob("setup/*.py"),
]
ERRORS = ("MntError", "UsageError", "InventoryError", "HostError", "OutputError")


@pytest.mark.parametrize("file", OF_SETUP, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_each_error_of_init_and_setup_has_a_fix(file: Path) -> None:
    """Who runs these begins with mnt: each error says how to go on."""
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    made = [call for call in calls if ast.unparse(call.func) in ERRORS]
    without = [call.lineno for call in made if "fix" not in [word.arg for word in call.keywords]]
    assert without == []
