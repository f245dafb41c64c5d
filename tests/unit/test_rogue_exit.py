"""Hosts that report an exit status which no process has: it is an error, and never a success for all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import paramiko
import pytest
from rogue_sshd import Deed, begin, inventory, mnt, rogue


def status(number: int) -> Deed:
    """End a command with this exit status, which only SSH reports."""

    def deed(channel: paramiko.Channel) -> None:
        begin(channel)
        channel.send_exit_status(number)
        channel.close()

    return deed


def killed(name: str) -> Deed:
    """End a command by a signal with this name (RFC 4254, 6.10)."""

    def deed(channel: paramiko.Channel) -> None:
        begin(channel)
        message = paramiko.Message()
        message.add_byte(paramiko.common.cMSG_CHANNEL_REQUEST)
        message.add_int(channel.remote_chanid)
        message.add_string("exit-signal")
        message.add_boolean(False)
        message.add_string(name)
        message.add_boolean(False)
        message.add_string("")
        message.add_string("")
        channel.transport._send_user_message(message)  # type: ignore[attr-defined]
        channel.close()

    return deed


STRANGE = [256, 512, 3 << 8, 1 << 16, 1 << 31, (1 << 32) - 256, (1 << 32) - 1]


@pytest.mark.parametrize("number", STRANGE)
def test_a_status_that_no_process_has_is_an_error_of_its_host(tmp_path: Path, number: int) -> None:
    with rogue(status(number)) as lying, rogue(status(3)) as failing:
        file = inventory(tmp_path, {"lying": lying, "failing": failing}, host_keys="accept-new")
        done = mnt("run", "-i", file, "--json", "x")
    document = json.loads(done.stdout)
    assert (done.returncode, document["exit_code"], document["failed"]) == (255, 255, ["lying", "failing"])
    assert document["hosts"]["lying"]["exit_code"] is None
    assert document["hosts"]["lying"]["error"] == (
        f"channel: no process has the exit status {number}, which it reports"
    )
    assert document["hosts"]["failing"]["exit_code"] == 3


@pytest.mark.parametrize("options", [[], ["-b"], ["--diff"], ["--worker", "ssh"]])
def test_a_strange_status_hides_no_failure(tmp_path: Path, options: list[str]) -> None:
    with rogue(status(256)) as lying, rogue(status(3)) as failing:
        file = inventory(tmp_path, {"lying": lying, "failing": failing}, host_keys="accept-new")
        done = mnt("run", "-i", file, *options, "x")
    assert done.returncode == (3 if "ssh" in options else 255)  # ssh itself makes 0 of 256
    assert "exit code 3: failing" in done.stderr


@pytest.mark.parametrize(
    "name", ["_DFL", "_BLOCK", "_SETMASK", "", "KILL@x", "RTMAX", "nal", "9", "A" * 9999]
)
def test_a_signal_with_a_strange_name_is_a_failure(tmp_path: Path, name: str) -> None:
    with rogue(killed(name)) as port:
        done = mnt("run", "-i", inventory(tmp_path, {"a": port}, host_keys="accept-new"), "x")
    assert done.returncode == (192 if name == "RTMAX" else 128)


@pytest.mark.parametrize(
    ("code", "seen"), [(0, 0), (3, 3), (255, 255), (256, 255), (1 << 31, 255), (-256, 255), (-1, 255)]
)
def test_the_system_truncates_no_exit_code(code: int, seen: int) -> None:
    program = f"import mnt.cli as c; c.cli.main = lambda **_: {code}; c.main()"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == seen
