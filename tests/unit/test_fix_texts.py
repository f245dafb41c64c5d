"""Fix texts have one style: an imperative sentence, or a command to paste (mnt/errors.py)."""

from __future__ import annotations

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
