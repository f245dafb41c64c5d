"""The files of an account: what `ssh-setup` writes, and that it leaves alone what is right."""

from __future__ import annotations

import base64
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mnt.remote.ssh import authorize
from mnt.remote.ssh.publickey import canonical


def blob(number: int) -> str:
    """An Ed25519 public key as authorized_keys has it, without its type."""
    return base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes(31) + bytes([number])).decode()


HEADS, NODES, TWOS, NEWS = map(blob, range(4))
HEAD = {"key": f"ssh-ed25519 {HEADS}", "comment": "me@head", "options": ""}
NODE = {"key": f"ssh-ed25519 {NODES}", "comment": "mnt:c:node1", "options": "no-port-forwarding"}
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
    assert once == text + f"ssh-ed25519 {HEADS} me@head\nno-port-forwarding ssh-ed25519 {NODES} mnt:c:node1\n"
    assert authorize.authorized(once, [HEAD, NODE]) == once


@pytest.mark.parametrize(
    "text",
    [
        f"ssh-ed25519 {HEADS} somebody else's comment\n",
        f'command="a b",no-pty ssh-ed25519 {HEADS}\n',
        f"ssh-ed25519 {HEADS}\n\n# end",
    ],
)
def test_a_key_that_is_let_in_already_keeps_its_line(text: str) -> None:
    assert authorize.authorized(text, [HEAD]).startswith(text)
    assert authorize.authorized(text, [HEAD]).count(HEADS) == 1


def test_a_key_in_a_comment_does_not_count() -> None:
    assert authorize.authorized(f"#ssh-ed25519 {HEADS}\n", [HEAD]).endswith(
        f"\nssh-ed25519 {HEADS} me@head\n"
    )


def test_a_nodes_new_key_takes_the_place_of_its_old_one() -> None:
    old = authorize.authorized("", [NODE, {**NODE, "comment": "mnt:c:node2", "key": f"ssh-ed25519 {TWOS}"}])
    new = authorize.authorized(old, [{**NODE, "key": f"ssh-ed25519 {NEWS}"}])
    assert NODES not in new
    assert TWOS in new
    assert NEWS in new


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
    assert HEADS in (home / "elsewhere").read_text()


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


HOSTILE_KEYS = [
    f"ssh-ed25519 {NODES}\nssh-ed25519 {TWOS}",
    f"ssh-ed25519 {NODES} x\nssh-ed25519 {TWOS}",
    f'command="x" ssh-ed25519 {NODES}',
    f"ssh-ed25519  {NODES}",
    f"ssh-ed25519 {NODES}\r",
    f"ssh-ed25519 {NODES[:-4]}",
    f"ssh-ed25519 {NODES}AAAA",
    f"ssh-rsa {NODES}",
    "ssh-ed25519 ",
    "ssh-ed25519 \u0661",
    "ssh-ed25519 AAAA",
    "",
]


@pytest.mark.parametrize("key", HOSTILE_KEYS)
def test_what_is_not_one_key_is_refused(home: Path, key: str) -> None:
    """A node's public key is any string that the node likes: it must not become a second line."""
    answer = run(authorized=[{**NODE, "key": key}])
    assert "is not a public key" in answer["refused"]["message"]
    assert not (home / ".ssh").exists()
    with pytest.raises(ValueError, match="not a public key"):
        canonical(key, types="ssh-ed25519")


@pytest.mark.parametrize("field", ["comment", "options"])
def test_a_comment_that_begins_a_new_line_is_refused(home: Path, field: str) -> None:
    answer = run(authorized=[{**NODE, field: f"x\nssh-ed25519 {TWOS}"}])
    assert "control character" in answer["refused"]["message"]
    assert not (home / ".ssh" / "authorized_keys").exists()
