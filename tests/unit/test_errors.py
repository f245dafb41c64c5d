"""What an error of a host says about the connection to it."""

from __future__ import annotations

from typing import get_args

from mnt.errors import HostError, Phase


def test_where_a_host_was_reached_and_where_there_is_no_connection() -> None:
    errors = [HostError("node1", phase, "x") for phase in get_args(Phase)]
    assert [error.phase for error in errors if error.logged_in] == ["channel", "command", "answer"]
    assert [error.phase for error in errors if not error.connection_lost] == ["command", "answer"]
