"""How a push has ended on one host, from what that host has answered."""

from __future__ import annotations

from typing import Any

import pytest

from mnt.errors import HostError
from mnt.fleet import Outcome
from mnt.push.ending import Ending

R, OTHER = "20261127-101500-3fa90c11", "20261126-101500-00000000"


def ending(**changes: Any) -> Ending:
    usual = {"reached": "switch", "outcome": None, "leads": True, "was_current": False, "switching": True}
    return Ending("node1", R, **{**usual, **changes})


def answered(current: str | None, **rest: Any) -> Outcome[dict[str, Any]]:
    return Outcome("node1", {"current": current, "called_off": False, **rest}, None, 1.0)


LOST = Outcome[dict[str, Any]]("node1", None, HostError("node1", "channel", "lost"), 1.0)


@pytest.mark.parametrize(
    ("known", "status"),
    [
        ({"reached": "commit"}, "pushed"),
        ({"reached": "prune", "outcome": answered(R)}, "pushed"),
        ({"reached": "commit", "was_current": True}, "unchanged"),
        ({"reached": "confirm", "leads": False, "outcome": answered(R)}, "pushed"),
        ({"reached": "commit", "leads": False}, "unknown"),  # another host has switched its workdir
        ({"reached": "confirm", "leads": False, "outcome": answered(OTHER)}, "unknown"),
        ({"reached": "commit", "outcome": answered(OTHER)}, "unknown"),
        ({}, "unknown"),
        ({"outcome": LOST}, "unknown"),
        ({"switching": False}, "failed"),
        ({"switching": False, "reached": None, "outcome": LOST}, "failed"),
        ({"outcome": answered(R)}, "switched"),
        ({"outcome": answered(R, called_off=True), "was_current": True}, "untouched"),
        ({"outcome": answered(OTHER, called_off=True)}, "untouched"),
        ({"outcome": answered(OTHER, refused={"message": "no", "fix": None})}, "failed"),
    ],
)
def test_the_status(known: dict[str, Any], status: str) -> None:
    assert ending(**known).status("pushed") == status


@pytest.mark.parametrize(
    ("known", "problem"),
    [
        ({"reached": "commit"}, (None, None)),
        ({}, ("it did not answer when the push was cancelled", None)),
        ({"outcome": LOST}, ("channel: lost", None)),
        ({"outcome": answered(OTHER, called_off=True, refused={"message": "no", "fix": None})}, (None, None)),
        ({"outcome": answered(OTHER, refused={"message": "no", "fix": None})}, ("no", None)),
        ({"reached": "prune", "outcome": answered(R)}, (None, None)),
    ],
)
def test_the_problem(known: dict[str, Any], problem: tuple[str | None, str | None]) -> None:
    assert ending(**known).problem("push") == problem
