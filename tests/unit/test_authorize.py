"""The files of an account: what `ssh-setup` writes, and that it leaves alone what is right."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mnt.remote.ssh import authorize

HEAD = {"key": "ssh-ed25519 AAAAhead", "comment": "me@head", "options": ""}
NODE = {"key": "ssh-ed25519 AAAAnode", "comment": "mnt:c:node1", "options": "no-port-forwarding"}
PEER = {"names": ["node1"], "address": "10.0.0.1", "user": "u", "port": 22, "keys": ["ssh-ed25519 AAAA1"]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    tmp_path.chmod(0o755)
    return tmp_path


def run(**args: Any) -> dict[str, Any]:
    given = {"cluster": "c", "authorized": [HEAD], "node_key": False, "peers": [], "dry_run": False, **args}
    return authorize.main(given, lambda frame: None, None)  # type: ignore[arg-type]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_are_added_once() -> None:
    text = "# mine\nssh-rsa AAAAmine\n"
    once = authorize.authorized(text, [HEAD, NODE])
    assert (
        once == text + "ssh-ed25519 AAAAhead me@head\nno-port-forwarding ssh-ed25519 AAAAnode mnt:c:node1\n"
    )
    assert authorize.authorized(once, [HEAD, NODE]) == once


@pytest.mark.parametrize(
    "text",
    [
        "ssh-ed25519 AAAAhead somebody else's comment\n",
        'command="a b",no-pty ssh-ed25519 AAAAhead\n',
        "ssh-ed25519 AAAAhead\n\n# end",
    ],
)
def test_a_key_that_is_let_in_already_keeps_its_line(text: str) -> None:
    assert authorize.authorized(text, [HEAD]).startswith(text)
    assert authorize.authorized(text, [HEAD]).count("AAAAhead") == 1


def test_a_key_in_a_comment_does_not_count() -> None:
    assert authorize.authorized("#ssh-ed25519 AAAAhead\n", [HEAD]).endswith(
        "\nssh-ed25519 AAAAhead me@head\n"
    )


def test_a_nodes_new_key_takes_the_place_of_its_old_one() -> None:
    old = authorize.authorized("", [NODE, {**NODE, "comment": "mnt:c:node2", "key": "ssh-ed25519 AAAAtwo"}])
    new = authorize.authorized(old, [{**NODE, "key": "ssh-ed25519 AAAAnew"}])
    assert "AAAAnode" not in new
    assert "AAAAtwo" in new
    assert "AAAAnew" in new


def test_ports_and_names_of_known_hosts() -> None:
    other = {**PEER, "names": ["node2"], "address": "fd00::2", "port": 2222}
    assert authorize.known_hosts([PEER, other]) == (
        "10.0.0.1,node1 ssh-ed25519 AAAA1\n[fd00::2]:2222,[node2]:2222 ssh-ed25519 AAAA1\n"
    )


@pytest.mark.skipif(not shutil.which("ssh"), reason="no OpenSSH client")
def test_ssh_reads_the_config_as_it_is_meant(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        authorize.config("c", [{**PEER, "port": 2222}]) + "Host *\n User other\n"
    )
    said = subprocess.run(["ssh", "-G", "-F", tmp_path / "config", "node1"], capture_output=True, text=True)
    lines = said.stdout.splitlines()
    assert {"hostname 10.0.0.1", "user u", "port 2222", "stricthostkeychecking true"} <= set(lines)
    assert "identityfile ~/.ssh/mnt/c/id_ed25519" in lines


def test_modes_and_a_second_run(home: Path) -> None:
    (home / ".ssh").mkdir(mode=0o755)
    (home / ".ssh" / "authorized_keys").write_text("ssh-rsa AAAAmine")  # no newline at its end
    (home / ".ssh" / "authorized_keys").chmod(0o644)
    first = run(peers=[PEER])
    assert len(first["changes"]) > 3
    assert (home / ".ssh" / "authorized_keys").read_text().startswith("ssh-rsa AAAAmine\nssh-ed25519 ")
    for path in (home / ".ssh").rglob("*"):
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path
    assert mode(home / ".ssh") == 0o700
    assert run(peers=[PEER])["changes"] == []


def test_a_dry_run_tells_the_same_and_does_nothing(home: Path) -> None:
    planned = run(peers=[PEER], dry_run=True)
    assert not (home / ".ssh").exists()
    done = run(peers=[PEER])
    assert [line for line in planned["changes"] if "mode" not in line] == done["changes"]


def test_a_link_stays_a_link(home: Path) -> None:
    (home / "elsewhere").write_text("")
    (home / ".ssh").mkdir(mode=0o700)
    (home / ".ssh" / "authorized_keys").symlink_to(home / "elsewhere")
    run()
    assert (home / ".ssh" / "authorized_keys").is_symlink()
    assert "AAAAhead" in (home / "elsewhere").read_text()


def test_a_home_that_others_may_write(home: Path) -> None:
    home.chmod(0o777)
    refused = run()["refused"]
    assert refused["fix"] == f"on the host: chmod go-w {home}"
    assert os.listdir(home) == []


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen")
def test_a_nodes_key_is_made_once(home: Path) -> None:
    public = run(node_key=True)["public"]
    assert public.startswith("ssh-ed25519 AAAA")
    assert run(node_key=True) == {"changes": [], "public": public}
    assert sorted(path.name for path in (home / ".ssh" / "mnt" / "c").iterdir()) == ["id_ed25519"]
