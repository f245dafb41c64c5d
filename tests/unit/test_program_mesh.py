"""The mesh program: what it gives to ssh, and what it makes of the answer. ssh is a script here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from boot_host import script

from mnt.remote.ssh import mesh

SSH = """#!/bin/sh
for word; do host=$word; [ "$previous" = -- ] && break; previous=$word; done
case $host in
  good) echo a banner; exit 0 ;;
  shut) echo "Warning: something" >&2; echo "$host: Connection refused" >&2; exit 255 ;;
  mute) exit 255 ;;
  slow) exec sleep 600 ;;
esac
"""


def login(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "address": name, "user": None, "port": None, **more}


def ask(*workers: dict[str, Any], **args: Any) -> Any:
    answer = mesh.main({"workers": list(workers), **args}, lambda frame: None, sys.stdin.buffer)
    return answer["results"]


@pytest.mark.parametrize(
    ("worker", "end"),
    [
        (login("node2"), ["--", "node2", "true"]),
        (login("node2", user="me", port=2222), ["-o", "User=me", "-p", "2222", "--", "node2", "true"]),
        (login("-oProxyCommand=x"), ["--", "-oProxyCommand=x", "true"]),
    ],
)
def test_the_command_never_asks_and_names_are_no_options(worker: dict[str, Any], end: list[str]) -> None:
    argv = mesh.command(worker, 2.5)
    options = ["-o", "BatchMode=yes", "-o", "ControlMaster=no", "-o", "ControlPath=none"]
    options += ["-o", "ConnectTimeout=3"]
    closed = ["-a", "-x", "-o", "ClearAllForwardings=yes", "-o", "Tunnel=no", "-o", "PermitLocalCommand=no"]
    assert argv == ["ssh", *options, *closed, "-T", *end]


def test_what_ssh_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "ssh", SSH)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    results = ask(login("good"), login("shut"), login("mute"), login("slow"), timeout=1.5)
    assert results == {
        "good": {"ok": True, "error": None},
        "shut": {"ok": False, "error": "shut: Connection refused"},
        "mute": {"ok": False, "error": "ssh: exit code 255"},
        "slow": {"ok": False, "error": "not done within 3 s"},
    }


def test_no_ssh_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask(login("good")) == {"good": {"ok": False, "error": "this host has no ssh client"}}


def test_nobody_to_ask() -> None:
    assert ask() == {}


def test_an_ssh_that_does_not_know_the_cheap_key_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = "command-line: line 0: Bad SSH2 KexAlgorithms '^curve25519-sha256'."
    script(tmp_path / "ssh", f'#!/bin/sh\ncase "$*" in *Kex*) echo "{refusal}" >&2; exit 255 ;; esac\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert ask(login("good")) == {"good": {"ok": True, "error": None}}
